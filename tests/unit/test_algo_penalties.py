"""Rewards and penalties come from typed facts."""

import numpy as np
import pytest

from rstar2.algo import (
    TracePenalty,
    count_tool_calls,
    error_penalties,
    format_penalties,
    rollout_reward,
    trace_penalty,
)
from rstar2.errors import UserError
from rstar2.records import Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn, Verdict

pytestmark = pytest.mark.unit


def turn(*results: ToolResult, num_pending: int = 0) -> Turn:
    calls = (ToolCall(raw="{}"),) * (len(results) + num_pending)
    return Turn((1,), (-0.1,), "x", StopReason.END_OF_TURN, calls=calls, results=results)


def trace(*turns: Turn) -> Trace:
    return Trace("t", "p", (0,), "", turns, Outcome.ANSWERED)


@pytest.mark.parametrize(
    ("outcome", "verdict", "reward"),
    [
        (Outcome.ANSWERED, Verdict.RIGHT, 1.0),
        (Outcome.ANSWERED, Verdict.WRONG, 0.0),
        (Outcome.ANSWERED, Verdict.NO_ANSWER, 0.0),
        (Outcome.ANSWERED, Verdict.UNDECIDED, None),
        (Outcome.TURN_LIMIT, Verdict.RIGHT, 1.0),
        (Outcome.TURN_LIMIT, Verdict.UNDECIDED, None),
        (Outcome.TRUNCATED, Verdict.RIGHT, 0.0),
        (Outcome.TRUNCATED, Verdict.UNDECIDED, 0.0),
        (Outcome.TRUNCATED, None, 0.0),
        (Outcome.INFRASTRUCTURE_FAULT, Verdict.RIGHT, None),
        (Outcome.INFRASTRUCTURE_FAULT, None, None),
    ],
)
def test_reward_is_the_final_answer_alone(outcome: Outcome, verdict: Verdict | None, reward: float | None) -> None:
    assert rollout_reward(outcome, verdict) == reward


def test_an_ungraded_answer_has_no_reward_to_give() -> None:
    with pytest.raises(UserError, match="verdict is missing"):
        rollout_reward(Outcome.ANSWERED, None)


def test_error_penalty_is_the_failed_share() -> None:
    np.testing.assert_array_equal(error_penalties([0, 4, 4, 4], [0, 0, 1, 4]), [0.5, 0.0, 0.25, 1.0])


def test_format_penalty_counts_superfluous_blocks_a_turn() -> None:
    blocks, turns = [0, 1, 1, 2, 3, 9], [3, 1, 5, 4, 4, 4]
    np.testing.assert_array_equal(format_penalties(blocks, turns), [1.0, 0.0, 0.0, 0.25, 0.5, 1.0])


def test_a_right_answer_in_one_turn_is_clean_in_format() -> None:
    assert trace_penalty(trace(turn()), 1) == TracePenalty(error=0.5, format=0.0)


def test_which_statuses_are_failures() -> None:
    failed = {status for status in ToolStatus if count_tool_calls([status]) == (1, 1)}
    fine = {status for status in ToolStatus if count_tool_calls([status]) == (1, 0)}
    assert fine == {ToolStatus.OK, ToolStatus.NO_OUTPUT}
    assert failed == set(ToolStatus) - fine - {ToolStatus.INFRASTRUCTURE_FAULT}
    assert count_tool_calls([ToolStatus.INFRASTRUCTURE_FAULT]) == (0, 0)


def test_text_that_mentions_errors_is_not_an_error() -> None:
    harmless = ToolResult(ToolStatus.OK, "mean squared error: 0.1; Traceback: none")
    silent_failure = ToolResult(ToolStatus.TIMED_OUT, "")
    penalty = trace_penalty(trace(turn(harmless, silent_failure), turn(harmless), turn()), 2)
    assert (penalty.error, penalty.format) == pytest.approx((1 / 3, 1 / 3))
    assert penalty.total == pytest.approx(2 / 3)


def test_a_pending_call_is_not_counted() -> None:
    ok = ToolResult(ToolStatus.OK, "1")
    assert trace_penalty(trace(turn(ok), turn(num_pending=1)), 1).error == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: error_penalties([1], [2]), "num_failed is larger"),
        (lambda: error_penalties([-1], [0]), "num_calls holds"),
        (lambda: format_penalties([1], [0]), "num_turns is 0"),
        (lambda: format_penalties([np.nan], [1]), "num_answer_blocks holds"),
    ],
)
def test_impossible_counts_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=message):
        call()
