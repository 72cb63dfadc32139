"""What the codec refuses, and in which words."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rstar2.records import Group, Outcome, Problem, Selection, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn
from rstar2.records.codec import RecordError, decode, encode

pytestmark = pytest.mark.unit

TURN = Turn(
    token_ids=(10, 11),
    log_probs=(-0.5, -1.5),
    text="ab",
    stop_reason=StopReason.END_OF_TURN,
    calls=(ToolCall(raw="{}", name="t", arguments={"code": "print(1)"}),),
    results=(ToolResult(ToolStatus.OK, "1"),),
)
TRACE = Trace("t0", "p0", (1, 2), "P:", (TURN,), Outcome.ANSWERED)
GROUP = Group("g0", "p0", 3, ("t0",), (1.0,), (0.0,), (None,), (0.5,), (Selection.KEPT,))


def stored(record: object) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(encode(record))
    return parsed


def test_every_field_is_written_and_null_is_a_value() -> None:
    fields = stored(TRACE)
    assert fields["answer"] is None
    assert fields["metadata"] == {}
    assert fields["outcome"] == "answered"
    assert fields["schema_version"] == 1


def test_a_field_with_a_default_may_be_left_out() -> None:
    assert decode(Problem, b'{"id": "p", "problem": "1+1?", "answer": "2"}') == Problem("p", "1+1?", "2")


def test_text_is_readable_utf8_and_a_lone_surrogate_an_escape() -> None:
    problem = Problem("p", "∑ 数学 \u2028", "\ud83d")
    line = encode(problem)
    assert "∑ 数学 \u2028".encode() in line
    assert rb"\ud83d" in line
    assert decode(Problem, line) == problem


def test_a_lone_surrogate_in_a_key_is_kept() -> None:
    trace = replace(TRACE, metadata={"\ud83d": "\ufffd"})
    assert decode(Trace, encode(trace)) == trace


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_by_name(bad: float) -> None:
    with pytest.raises(ValueError, match=r"cannot store trace t0: turns\[0\]\.log_probs\[1\] is not a finite number"):
        encode(replace(TRACE, turns=(replace(TURN, log_probs=(-0.5, bad)),)))
    call = ToolCall("", "t", {"x": [{"y": bad}]})
    with pytest.raises(ValueError, match=r"turns\[0\]\.calls\[0\]\.arguments\['x'\]\[0\]\['y'\] is not a finite"):
        encode(replace(TRACE, turns=(replace(TURN, calls=(call,)),)))


def test_a_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot store trace t0: a value of type bytes has no JSON form"):
        encode(replace(TRACE, turns=(replace(TURN, calls=(ToolCall("", "t", {"x": b"1"}),)),)))


@pytest.mark.parametrize("record", [TRACE, GROUP, Problem("p", "q", "a")])
def test_another_schema_version_is_refused_and_the_readable_one_named(record: Trace | Group | Problem) -> None:
    newer = encode(replace(record, schema_version=2))
    with pytest.raises(RecordError, match="has schema version 2, but this build reads version 1"):
        decode(type(record), newer)


def test_a_newer_version_is_told_before_its_unknown_fields() -> None:
    line = json.dumps({**stored(TRACE), "schema_version": 7, "novelty": 1}).encode()
    with pytest.raises(RecordError, match="schema version 7"):
        decode(Trace, line)


def _set(path: list[str | int], value: object) -> Callable[[Any], None]:
    def change(fields: Any) -> None:
        for step in path[:-1]:
            fields = fields[step]
        fields[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_set(["extra"], 1), "not a valid trace: unknown field extra"),
        (_set(["turns", 0, "extra"], 1), r"turns\[0\]: unknown field extra"),
        (lambda fields: fields.pop("problem_id"), "missing field problem_id"),
        (_set(["id"], 1), "id: input should be a valid string, found 1"),
        (_set(["id"], None), "id: input should be a valid string, found null"),
        (_set(["step"], True), "step: input should be a valid integer, found true"),
        (_set(["step"], 1.0), "step: input should be a valid integer, found 1.0"),
        (_set(["reward"], "1"), 'reward: input should be a valid number, found "1"'),
        (_set(["reward"], True), "reward: input should be a valid number, found true"),
        (_set(["reward"], 10**400), "reward: input should be a finite number"),
        (_set(["prompt_ids"], "12"), 'prompt_ids: input should be a valid array, found "12"'),
        (
            _set(["turns", 0, "token_ids", 1], "x"),
            r'turns\[0\]\.token_ids\[1\]: input should be a valid integer, found "x"',
        ),
        (_set(["outcome"], "won"), "outcome: input should be 'answered', 'truncated', .*, found \"won\""),
        (_set(["outcome"], []), "outcome: input should be 'answered'"),
        (_set(["metadata"], []), r"metadata: input should be an object, found \[\]"),
        (_set(["metadata"], {"k": 1}), "metadata.k: input should be a valid string, found 1"),
        (_set(["turns", 0, "log_probs"], [0.5]), r"turns\[0\]: turn has 2 token ids but 1 log_probs"),
        (
            _set(["turns", 0, "results", 0, "status"], "fine"),
            r"turns\[0\]\.results\[0\]\.status: input .* be 'ok',",
        ),
    ],
)
def test_what_is_not_as_declared_is_refused_by_name(change: Callable[[Any], None], sentence: str) -> None:
    fields = stored(TRACE)
    change(fields)
    with pytest.raises(RecordError, match=sentence):
        decode(Trace, json.dumps(fields).encode())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b"1",
        b'{"id": NaN}',
        b"[" * 100_000,
        encode(TRACE) + b"x",
        encode(TRACE)[:-1],
    ],
)
def test_what_is_no_record_at_all_is_refused(line: bytes) -> None:
    with pytest.raises(RecordError):
        decode(Trace, line)


def test_a_number_too_large_for_a_float_is_refused_wherever_it_stands() -> None:
    line = encode(TRACE).replace(b'"code":"print(1)"', b'"code":1e999')
    with pytest.raises(RecordError, match=r"arguments\['code'\]"):
        decode(Trace, line)


def test_an_integer_stands_for_a_float() -> None:
    record = decode(Trace, json.dumps({**stored(TRACE), "reward": 1}).encode())
    assert repr(record.reward) == "1.0"
