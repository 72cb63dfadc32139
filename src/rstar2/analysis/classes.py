"""Classifies each token of a turn: reasoning, a tool call, the answer. Pure, total, linear in the text.

Invariant: every token has exactly one class, which is that of its first character that is no space. Calls are where
the agent's parser found them (`ToolCall.raw`); a call that was cut off reaches to the end of the turn.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from rstar2.records import ANSWER_CLOSE, ANSWER_OPEN, StopReason, Turn, answer_blocks

NUM_FIRST_TOKENS = 16
"""How many tokens at the start of a turn count as the first after a tool response: about a sentence."""


class TokenClass(StrEnum):
    REASONING = "reasoning"
    AFTER_RESPONSE = "after_response"
    """Reasoning among the first tokens of a turn that follows a tool response."""
    CODE = "code"
    """Inside a string value of a tool call's arguments."""
    CALL_SYNTAX = "call_syntax"
    """The rest of a tool call: tags, braces, names, quotes."""
    ANSWER = "answer"
    """An answer block with its tags."""
    MARKUP = "markup"
    """Tags around reasoning, and the token that ends the turn."""

    @property
    def is_prose(self) -> bool:
        return self in (TokenClass.REASONING, TokenClass.AFTER_RESPONSE)


@dataclass(frozen=True, slots=True)
class ClassSpan:
    """Tokens `start` to `end` (not included) of one turn, all of one class."""

    turn: int
    start: int
    end: int
    token_class: TokenClass


_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
_CALL_TAG = re.compile(f"{_CALL_OPEN}|{_CALL_CLOSE}")
_REASON_TAG = re.compile(r"</?(?:reason|think)>")
_CONTROL_TOKEN = re.compile(r"<[^<>\s]+>")
_JSON_PART = re.compile(r'"(?P<text>[^"\\]*(?:\\.[^"\\]*)*\\?)(?:"|\Z)|[{}\[\]]', re.DOTALL)
_COLON = re.compile(r"\s*:")


def classify(turn: Turn, pieces: Sequence[str], *, follows_response: bool) -> tuple[TokenClass, ...]:
    """The class of each token; `pieces` are their texts."""
    text = "".join(pieces)
    of_chars = _classes_of_chars(text, [call.raw for call in turn.calls])
    classes: list[TokenClass] = []
    start = 0
    for piece in pieces:
        place = min(start + len(piece) - len(piece.lstrip()) if piece.strip() else start, len(text) - 1)
        classes.append(of_chars[place] if text else TokenClass.REASONING)
        start += len(piece)
    if follows_response:
        classes[:NUM_FIRST_TOKENS] = [
            TokenClass.AFTER_RESPONSE if found is TokenClass.REASONING else found
            for found in classes[:NUM_FIRST_TOKENS]
        ]
    ends_itself = turn.stop_reason is StopReason.END_OF_TURN
    if classes and classes[-1].is_prose and ends_itself and _CONTROL_TOKEN.fullmatch(pieces[-1]):
        classes[-1] = TokenClass.MARKUP
    return tuple(classes)


def class_spans(turn: int, classes: Sequence[TokenClass]) -> tuple[ClassSpan, ...]:
    """The classes as spans, which follow each other without a gap; neighbouring spans differ."""
    spans, start = list[ClassSpan](), 0
    for found, same in groupby(classes):
        end = start + len(list(same))
        spans.append(ClassSpan(turn, start, end, found))
        start = end
    return tuple(spans)


def _classes_of_chars(text: str, raw_calls: Sequence[str]) -> list[TokenClass]:
    classes = [TokenClass.REASONING] * len(text)

    def paint(start: int, end: int, found: TokenClass) -> None:
        classes[start:end] = [found] * (end - start)

    parts, seen_end = list[str](), 0
    for block_start, start, end, block_end in _calls(text, raw_calls):
        paint(block_start, block_end, TokenClass.CALL_SYNTAX)
        for value_start, value_end in _argument_texts(text[start:end]):
            paint(start + value_start, start + value_end, TokenClass.CODE)
        # Answer and reasoning tags inside a call are not an answer and not reasoning.
        parts += [text[seen_end:block_start], "\n" * (block_end - block_start)]
        seen_end = block_end
    outside = "".join([*parts, text[seen_end:]])
    for tag in _CALL_TAG.finditer(outside):
        paint(tag.start(), tag.end(), TokenClass.CALL_SYNTAX)
    for start, end in _answers(outside):
        for place in range(start, end):
            if classes[place] is TokenClass.REASONING:
                classes[place] = TokenClass.ANSWER
    for tag in _REASON_TAG.finditer(outside):
        paint(tag.start(), tag.end(), TokenClass.MARKUP)
    return classes


def _calls(text: str, raw_calls: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """For each call: where its block starts, its content starts and ends, its block ends."""
    num_seen, block_end = 0, 0
    while (block_start := text.find(_CALL_OPEN, block_end)) >= 0:
        start = block_start + len(_CALL_OPEN)
        if num_seen < len(raw_calls) and text.startswith(raw_calls[num_seen], start):
            end = start + len(raw_calls[num_seen])
            num_seen += 1
        else:
            tag = _CALL_TAG.search(text, start)
            end = tag.start() if tag else len(text)
        block_end = end + len(_CALL_CLOSE) if text.startswith(_CALL_CLOSE, end) else end
        yield block_start, start, end, block_end


def _argument_texts(content: str) -> Iterator[tuple[int, int]]:
    """The string values of a call's arguments, without their quotes. It reads broken or truncated JSON as far as
    possible: the call's own fields are one level deep, its arguments deeper."""
    depth, key = 0, ""
    for part in _JSON_PART.finditer(content):
        if part["text"] is None:
            depth += 1 if part[0] in "{[" else -1
        elif _COLON.match(content, part.end()):
            key = part["text"]
        elif depth >= 2 or key == "arguments":
            yield part.span("text")


def _answers(text: str) -> Iterator[tuple[int, int]]:
    """The answer blocks with their tags, as the grader reads them; one that was never closed reaches to the end."""
    closed_end = 0
    for start, end in answer_blocks(text):
        closed_end = end + len(ANSWER_CLOSE)
        yield start - len(ANSWER_OPEN), closed_end
    if (unclosed := text.rfind(ANSWER_OPEN, closed_end)) >= 0:
        yield unclosed, len(text)
