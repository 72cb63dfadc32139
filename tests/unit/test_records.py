"""Traces rebuild what the engine saw."""

import json
from dataclasses import replace

import pytest

from rstar2.records import (
    Fault,
    Group,
    Outcome,
    Selection,
    StopReason,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trace,
    Turn,
    Verdict,
)
from rstar2.records.codec import decode, encode

pytestmark = pytest.mark.unit


def make_trace() -> Trace:
    first = Turn(
        token_ids=(10, 11),
        log_probs=(-0.5, -1.5),
        text="ab",
        stop_reason=StopReason.END_OF_TURN,
        calls=(ToolCall(raw="{}", name="t"), ToolCall(raw="junk")),
        results=(ToolResult(ToolStatus.OK, "1"), ToolResult(ToolStatus.UNPARSABLE_CALL, "no")),
        appended_ids=(20, 21, 22),
        appended_text="<r>",
    )
    last = Turn(token_ids=(12,), log_probs=(-2.0,), text="c", stop_reason=StopReason.END_OF_TURN)
    return Trace("t0", "p0", (1, 2), "P:", (first, last), Outcome.ANSWERED)


def test_ids_mask_log_probs_and_text_are_aligned() -> None:
    trace = make_trace()
    assert trace.token_ids == (1, 2, 10, 11, 20, 21, 22, 12)
    assert trace.loss_mask == (False, False, True, True, False, False, False, True)
    assert trace.log_probs == (0.0, 0.0, -0.5, -1.5, 0.0, 0.0, 0.0, -2.0)
    assert trace.text == "P:ab<r>c"
    assert trace.response_text == "abc"
    assert (trace.num_response_tokens, trace.num_sampled_tokens) == (6, 3)
    assert (trace.num_tool_calls, trace.num_tool_errors) == (2, 1)


def test_every_status_names_whose_fault_it_was() -> None:
    assert {status for status in ToolStatus if status.fault is Fault.NONE} == {ToolStatus.OK, ToolStatus.NO_OUTPUT}
    assert ToolStatus.INFRASTRUCTURE_FAULT.fault is Fault.INFRASTRUCTURE
    assert not ToolStatus.INFRASTRUCTURE_FAULT.is_tool_error
    assert ToolStatus.TIMED_OUT.is_tool_error


def test_misaligned_log_probs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 token ids but 1 log_probs"):
        Turn(token_ids=(1, 2), log_probs=(-1.0,), text="", stop_reason=StopReason.END_OF_TURN)


@pytest.mark.parametrize(
    ("verdict", "reward", "is_right"),
    [
        (Verdict.RIGHT, 0.5, True),
        (Verdict.WRONG, 1.0, False),
        (Verdict.NO_ANSWER, 0.0, False),
        (Verdict.UNDECIDED, None, None),
        (None, 1.0, True),
        (None, 0.99, False),
        (None, 0.0, False),
        (None, None, None),
    ],
)
def test_right_is_the_verdict_or_else_the_full_reward(
    verdict: Verdict | None, reward: float | None, is_right: bool | None
) -> None:
    assert replace(make_trace(), verdict=verdict, reward=reward).is_right is is_right


def test_the_parts_of_a_reward_are_read_from_the_metadata() -> None:
    trace = replace(make_trace(), metadata={"score/tests": "0.5", "score-weight/tests": "2.0", "stage": "one"})
    assert trace.score_parts == {"tests": 0.5}


def test_a_group_says_what_was_right_and_what_was_a_success() -> None:
    given = Group("g", "p", 1, ("a", "b", "c", "d"), (1.0, 0.5, 0.0, None), *((None,) * 4,) * 3, (Selection.KEPT,) * 4)
    assert given.is_right == (True, False, False, False)
    assert given.is_success == (True, True, False, False)
    judged = replace(given, is_right=(False, True, False, False), is_success=(True, False, False, False))
    assert decode(Group, encode(judged)) == judged
    older = {name: value for name, value in json.loads(encode(given)).items() if not name.startswith("is_")}
    assert decode(Group, json.dumps(older).encode()) == given
    with pytest.raises(ValueError, match="is_right has 1 entries for 4 rollouts"):
        replace(given, is_right=(True,))
