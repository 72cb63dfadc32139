"""Whatever a model writes and however it is split into tokens: each token has one class, one kind at most, and the
highest fifth is a fifth."""

import json
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.analysis import analyze, as_json, draw_figures, examine
from rstar2.analysis.classes import class_spans, classify
from rstar2.records import Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn

pytestmark = pytest.mark.property

TAGS = ["<tool_call>", "</tool_call>", "<answer>", "</answer>", "<reason>", "</reason>", "<eos>"]
FRAGMENTS = st.sampled_from(
    [*TAGS, '{"name": "p", ', '"arguments": {"code": "', '"}}', *'\\"{}\n🙂\ud800\x00', "Wait", ", but ", "print(1)"]
)
PIECES = st.lists(st.one_of(st.just(""), FRAGMENTS, st.text(max_size=6)), min_size=1, max_size=40)


class Texts:
    """An id is the place of a piece in the list."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def pieces(self, token_ids: tuple[int, ...]) -> list[str]:
        return [self._pieces[token_id] for token_id in token_ids]


@st.composite
def turns(draw: st.DrawFn) -> tuple[Turn, list[str]]:
    pieces = draw(PIECES)
    raws = draw(st.lists(st.one_of(st.text(max_size=4), FRAGMENTS), max_size=3))
    statuses = draw(st.lists(st.sampled_from(ToolStatus), max_size=len(raws)))
    entropies = draw(st.lists(st.floats(0, 5), min_size=len(pieces), max_size=len(pieces)))
    turn = Turn(
        tuple(range(len(pieces))),
        (),
        "".join(pieces),
        draw(st.sampled_from(StopReason)),
        tuple(entropies),
        tuple(ToolCall(raw) for raw in raws),
        tuple(ToolResult(status, "x") for status in statuses),
    )
    return turn, pieces


@given(turns(), st.booleans())
def test_spans_partition_the_tokens(made: tuple[Turn, list[str]], follows: bool) -> None:
    turn, pieces = made
    classes = classify(turn, pieces, follows_response=follows)
    spans = class_spans(0, classes)
    assert len(classes) == len(pieces)
    assert [place for span in spans for place in range(span.start, span.end)] == list(range(len(pieces)))
    assert all(span.start < span.end for span in spans)
    assert all(one.token_class is not two.token_class for one, two in pairwise(spans))
    assert [span.token_class for span in spans for _ in range(span.start, span.end)] == list(classes)


@given(st.lists(turns(), min_size=1, max_size=4))
def test_a_fifth_is_high_and_kinds_are_high_prose(made: list[tuple[Turn, list[str]]]) -> None:
    trace, texts = _joined(made)
    tokens = examine(trace, texts)
    assert tokens is not None
    num_positive = int((tokens.values > 0).sum())
    assert int(tokens.is_high.sum()) == min(-(-len(tokens.values) // 5), num_positive)
    if tokens.is_high.any() and not tokens.is_high.all():
        assert tokens.values[tokens.is_high].min() >= tokens.values[~tokens.is_high].max()
    for turn in tokens.turns:
        for kind, found, is_high in zip(turn.kinds, turn.classes, turn.is_high, strict=True):
            assert kind is None or (found.is_prose and is_high)


@given(st.lists(turns(), min_size=1, max_size=4))
def test_figures_and_document_hold_anything(made: list[tuple[Turn, list[str]]]) -> None:
    trace, texts = _joined(made)
    analysis = analyze([trace], texts)
    json.dumps(as_json(analysis), ensure_ascii=False, allow_nan=False).encode()
    for picture in draw_figures(analysis, "".join(made[0][1])).values():
        ET.fromstring(picture.encode())


def _joined(made: list[tuple[Turn, list[str]]]) -> tuple[Trace, Texts]:
    pieces: list[str] = []
    shifted: list[Turn] = []
    for turn, own in made:
        ids = tuple(range(len(pieces), len(pieces) + len(own)))
        fields = {name: getattr(turn, name) for name in ("log_probs", "text", "stop_reason", "entropies")}
        shifted.append(Turn(token_ids=ids, calls=turn.calls, results=turn.results, **fields))
        pieces += own
    trace = Trace("t", "p", (), "", tuple(shifted), Outcome.ANSWERED, reward=1.0)
    return trace, Texts(pieces)
