"""What kind of text a model is writing, found while it streams: reasoning, a tool call, an answer, or plain text. Pure.

Tags are taken out. A piece that may be the start of a tag is held back until it is known whether it is one.
"""

from enum import StrEnum


class TextKind(StrEnum):
    PLAIN = "plain"
    REASON = "reason"
    CALL = "tool_call"
    ANSWER = "answer"


_TAGS = {f"<{span}>": span for span in (TextKind.REASON, TextKind.CALL, TextKind.ANSWER)} | {
    f"</{span}>": TextKind.PLAIN for span in (TextKind.REASON, TextKind.CALL, TextKind.ANSWER)
}


class SpanReader:
    """One assistant turn."""

    def __init__(self) -> None:
        self._span = TextKind.PLAIN
        self._held = ""

    def feed(self, text: str) -> list[tuple[TextKind, str]]:
        """The pieces that are certain by now, in order."""
        self._held += text
        pieces: list[tuple[TextKind, str]] = []
        while self._held:
            before, bracket, rest = self._held.partition("<")
            if before:
                pieces.append((self._span, before))
            self._held = bracket + rest
            tag = next((tag for tag in _TAGS if self._held.startswith(tag)), None)
            if tag is not None:
                self._span, self._held = _TAGS[tag], self._held.removeprefix(tag)
            elif any(tag.startswith(self._held) for tag in _TAGS):
                break
            else:
                pieces.append((self._span, bracket))
                self._held = rest
        return [(span, piece) for span, piece in pieces if piece]

    def finish(self) -> list[tuple[TextKind, str]]:
        """The turn is over: what was held back is text."""
        held, self._held = self._held, ""
        return [(self._span, held)] if held else []
