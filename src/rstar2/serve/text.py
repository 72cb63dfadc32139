"""Turns token ids into the text that a caller sees: without control tokens, up to the first stop string.

Text that may begin a stop string is held back until this is known.
"""

from collections.abc import Sequence

from rstar2.agent.incremental import TextStream
from rstar2.engine.protocol import Tokenizer


class TextReader:
    """Reads one answer."""

    def __init__(
        self, tokenizer: Tokenizer, hidden_ids: frozenset[int], stops: Sequence[str] = (), *, keeps_stop: bool = False
    ) -> None:
        self._stream = TextStream(tokenizer)
        self._hidden_ids = hidden_ids
        self._stops = tuple(stops)
        self._keeps_stop = keeps_stop
        self._held = ""
        self.has_stopped = False

    def feed(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Add ids; returns the new text, and how many of the ids belong to the answer: all, or those up to the end of a
        stop string."""
        if not self._stops:
            return self._stream.feed([each for each in token_ids if each not in self._hidden_ids]), len(token_ids)
        pieces: list[str] = []
        for number, token_id in enumerate(token_ids, start=1):
            text = "" if token_id in self._hidden_ids else self._stream.feed([token_id])
            pieces.append(self._up_to_stop(text))
            if self.has_stopped:
                return "".join(pieces), number
        return "".join(pieces), len(token_ids)

    def finish(self) -> str:
        """End the answer; returns the rest of its text."""
        if self.has_stopped:
            return ""
        text = self._up_to_stop(self._stream.finish())
        held, self._held = self._held, ""
        return text if self.has_stopped else text + held

    def _up_to_stop(self, text: str) -> str:
        text = self._held + text
        found = [(text.index(stop), stop) for stop in self._stops if stop in text]
        if found:
            self.has_stopped, self._held = True, ""
            start, stop = min(found)
            return text[: start + len(stop)] if self._keeps_stop else text[:start]
        num_held = num_held_back(text, self._stops)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]


def num_held_back(text: str, tags: Sequence[str]) -> int:
    """The length of the longest suffix of the text that is a proper prefix of a tag."""
    longest = max((len(tag) - 1 for tag in tags), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
