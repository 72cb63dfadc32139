"""What is watched, on traces made by hand; and when a policy is called collapsed."""

import math
from dataclasses import replace

import pytest

from rstar2.records import (
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
from rstar2.train.reporting.metrics import WINDOW, collapse, watch_rollouts, window_mean

pytestmark = pytest.mark.unit

ANSWER = r"</reason><answer>\boxed{1}</answer>"


def turn(text: str = ANSWER, *statuses: ToolStatus, stop: StopReason = StopReason.END_OF_TURN) -> Turn:
    calls = tuple(ToolCall(raw="{}") for _ in statuses)
    results = tuple(ToolResult(status) for status in statuses)
    return Turn((1, 2), (-1.0, -1.0), text, stop, entropies=(0.5, 1.5), calls=calls, results=results, appended_ids=(3,))


def trace(name: str, reward: float | None, *turns: Turn, outcome: Outcome = Outcome.ANSWERED) -> Trace:
    verdict = None if reward is None else Verdict.RIGHT if reward else Verdict.WRONG
    return Trace(name, "p", (0,), "", turns, outcome, verdict=verdict, reward=reward)


RAISED, OK = ToolStatus.RAISED, ToolStatus.OK
TRACES = (
    trace("a", 1.0, turn("", OK, RAISED), turn()),
    trace("b", 1.0, turn("", OK), turn()),
    trace("c", 0.0, turn("", RAISED), turn("<answer> never closed")),
    trace("d", 0.0, turn("cut", stop=StopReason.TOKEN_LIMIT), outcome=Outcome.TRUNCATED),
    trace("e", None, turn("", ToolStatus.INFRASTRUCTURE_FAULT), outcome=Outcome.INFRASTRUCTURE_FAULT),
    Trace("f", "p", (0,), "", (turn(),), Outcome.ANSWERED, verdict=Verdict.UNDECIDED),
)


def group(name: str, rewards: tuple[float | None, ...], *selections: Selection) -> Group:
    nothing = (None,) * len(rewards)
    return Group(name, "p", 1, tuple("abcdef"[: len(rewards)]), rewards, nothing, nothing, nothing, selections)


GROUPS = (
    group("g", (1.0, 1.0, 0.0, 0.0), Selection.DOWNSAMPLED, Selection.KEPT, Selection.KEPT, Selection.DOWNSAMPLED),
    group("h", (1.0, 1.0, None), *[Selection.EQUAL_REWARDS] * 2, Selection.UNSCORED),
)


def test_what_is_watched() -> None:
    assert watch_rollouts(TRACES, GROUPS) == pytest.approx(
        {
            "reward_mean": 0.5,
            "reward_std": 0.25,  # 0.5 in one group, 0 in the other
            "accuracy": 0.5,
            "tool_error_share_right": 1 / 3,
            "tool_error_share_wrong": 1.0,
            "tool_error_share_kept_right": 0.0,  # only the clean one was kept
            "calls_per_rollout": 1.0,
            "turns_mean": 7 / 4,
            "void_turn_share": 1 / 6,  # of the six finished turns, the one that neither calls nor answers
            "answers_per_rollout": 0.5,
            "no_tool_share": 0.25,
            "truncated_share": 0.25,
            "response_tokens_mean": 21 / 4,
            "response_tokens_right": 6.0,
            "engine_entropy": 1.0,
            "generated_tokens": 18,
            "num_rollouts": 6,
            "num_faults": 1,
            "num_undecided": 1,
            "groups_kept": 1,
            "groups_dropped": 1,
        }
    )
    assert all(math.isfinite(value) for value in watch_rollouts((), ()).values())


def test_a_policy_collapses_when_its_reward_falls_and_stays_low() -> None:
    seen = {"entropy": 0.01, "grad_norm": 3.0, "truncated_share": 0.9}
    low = (0.2,) * WINDOW
    assert window_mean(low[1:]) is None and window_mean((9.0, *low)) == pytest.approx(0.2)
    assert collapse(seen, low[1:], 0.8) is None, "single steps are noisy"
    assert collapse(seen, (0.33,) * WINDOW, 0.8) is None
    assert collapse(seen, (0.0,) * WINDOW, 0.1) is None, "it had nothing to lose"
    reason = collapse(seen, low, 0.8)
    assert reason is not None
    for words in ("0.200", "0.800", "entropy 0.01", "grad_norm 3", "truncated_share 0.9"):
        assert words in reason


@pytest.mark.parametrize("name", ["loss", "grad_norm", "entropy"])
def test_a_number_that_is_none_is_a_collapse_at_once(name: str) -> None:
    assert collapse({name: float("nan")}, (), 0.0) == f"{name} is nan"
    assert collapse({name: 1.0}, (), 0.0) is None


def test_what_a_branch_shares_was_generated_once() -> None:
    root = trace("a", 1.0, turn("", OK), turn())
    branch = Trace("b", "p", (0,), "", root.turns, Outcome.ANSWERED, reward=0.0, parent="a", num_shared_turns=1)
    assert watch_rollouts((root, branch), ())["generated_tokens"] == 6
    first, second = (Turn((1, 2), (0.0, 0.0), "", StopReason.END_OF_TURN, entropies=(8.0, 4.0)) for _ in range(2))
    root = replace(root, turns=(first, second))
    inside = replace(second, entropies=(8.0, 1.0))
    branch = replace(branch, turns=(first, inside), num_shared_tokens=1)
    assert watch_rollouts((root, branch), ())["engine_entropy"] == pytest.approx((8 + 4 + 8 + 4 + 1) / 5)
