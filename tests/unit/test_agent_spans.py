"""Reasoning, calls and answers are told apart however the stream is cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.agent.events import SpanReader, TextKind

pytestmark = pytest.mark.unit

TEXT = 'two < three <b>.</reason>\n<tool_call>{"a": "<x>"}</tool_call> so <answer>\\boxed{1}</answer> <reas'


def read(pieces: list[str]) -> list[tuple[TextKind, str]]:
    reader = SpanReader()
    found = [span for piece in pieces for span in reader.feed(piece)] + reader.finish()
    merged: list[tuple[TextKind, str]] = []
    for span, text in found:
        if merged and merged[-1][0] is span:
            merged[-1] = (span, merged[-1][1] + text)
        else:
            merged.append((span, text))
    return merged


EXPECTED = [
    (TextKind.REASON, "two < three <b>."),
    (TextKind.PLAIN, "\n"),
    (TextKind.CALL, '{"a": "<x>"}'),
    (TextKind.PLAIN, " so "),
    (TextKind.ANSWER, "\\boxed{1}"),
    (TextKind.PLAIN, " <reas"),
]


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_spans_do_not_depend_on_where_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(edges)]
    assert read(["<reason>", *pieces]) == EXPECTED
