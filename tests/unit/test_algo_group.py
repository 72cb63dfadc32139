"""Whole groups: who is kept, who is left out and why, and what a batch still lacks."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rstar2.algo import (
    RocSettings,
    decide_group,
    is_trainable,
    num_missing_groups,
    num_missing_rollouts,
    rollout_reward,
)
from rstar2.algo.penalties import Penalty
from rstar2.errors import UserError
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
from rstar2.web.selection import penalty_of

pytestmark = pytest.mark.unit

RIGHT, WRONG, UNDECIDED = Verdict.RIGHT, Verdict.WRONG, Verdict.UNDECIDED


def make_trace(
    index: int, verdict: Verdict, *, outcome: Outcome = Outcome.ANSWERED, status: ToolStatus = ToolStatus.OK
) -> Trace:
    call = Turn(
        (1,), (-0.1,), "x", StopReason.END_OF_TURN, calls=(ToolCall(raw="{}"),), results=(ToolResult(status, "1"),)
    )
    last = Turn((2,), (-0.1,), "y", StopReason.END_OF_TURN)
    return Trace(
        f"t{index}",
        "p",
        (0,),
        "",
        (call, last),
        outcome,
        verdict=verdict,
        reward=rollout_reward(outcome, verdict),
    )


def decide(traces: list[Trace], *, group_size: int = 4, seed: int = 0, **settings: object) -> Group:
    roc = RocSettings(group_size=group_size, **settings)  # type: ignore[arg-type]
    return decide_group(traces, [1] * len(traces), roc, np.random.default_rng(seed), group_id="g", step=3)


def count(group: Group, selection: Selection) -> int:
    return group.selections.count(selection)


def test_a_mixed_group_keeps_half_of_each_class_with_advantages() -> None:
    group = decide([make_trace(i, RIGHT if i < 4 else WRONG) for i in range(8)])
    assert (group.id, group.problem_id, group.step) == ("g", "p", 3)
    assert group.trace_ids == tuple(f"t{i}" for i in range(8))
    assert group.rewards == (1.0,) * 4 + (0.0,) * 4
    assert [s is Selection.KEPT for s in group.selections[:4]].count(True) == 2
    assert [s is Selection.KEPT for s in group.selections[4:]].count(True) == 2
    kept = [(r, a) for r, a, s in zip(group.rewards, group.advantages, group.selections, strict=True) if s == "kept"]
    assert sorted(kept) == [pytest.approx((r, a)) for r, a in [(0, -(0.75**0.5))] * 2 + [(1, 0.75**0.5)] * 2]
    assert all(a is None for a, s in zip(group.advantages, group.selections, strict=True) if s != "kept")
    assert is_trainable(group)


def test_faults_and_undecided_verdicts_are_left_out_and_not_scored_zero() -> None:
    traces = [
        make_trace(0, RIGHT),
        make_trace(1, WRONG),
        make_trace(2, UNDECIDED),
        make_trace(3, RIGHT, outcome=Outcome.INFRASTRUCTURE_FAULT),
        make_trace(4, RIGHT, outcome=Outcome.TRUNCATED),
    ]
    group = decide(traces)
    assert group.rewards == (1.0, 0.0, None, None, 0.0)
    assert group.error_penalties == (0.0, 0.0, None, None, 0.0)
    assert group.format_penalties == (0.0, 0.0, None, None, 0.0)
    unscored = Selection.UNSCORED
    assert group.selections == (Selection.KEPT, Selection.KEPT, unscored, unscored, Selection.KEPT)
    kept = [group.advantages[i] for i in (0, 1, 4)]
    assert kept == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5])
    assert num_missing_rollouts(group.rewards, num_sampled=8) == 5


@pytest.mark.parametrize(
    "mistaken",
    [
        replace(make_trace(9, UNDECIDED), reward=0.0),
        replace(make_trace(9, RIGHT, outcome=Outcome.INFRASTRUCTURE_FAULT), reward=1.0),
    ],
)
def test_a_reward_given_by_mistake_is_not_believed(mistaken: Trace) -> None:
    group = decide([make_trace(0, RIGHT), make_trace(1, WRONG), mistaken])
    assert (group.rewards[2], group.selections[2]) == (None, Selection.UNSCORED)


@pytest.mark.parametrize("verdict", [RIGHT, WRONG])
def test_equal_rewards_drop_the_whole_group(verdict: Verdict) -> None:
    group = decide([make_trace(i, verdict) for i in range(8)])
    assert count(group, Selection.EQUAL_REWARDS) == 4
    assert count(group, Selection.DOWNSAMPLED) == 4
    assert group.advantages == (None,) * 8
    assert not is_trainable(group)


def test_equal_rewards_may_stay_with_advantages_of_zero() -> None:
    group = decide([make_trace(i, WRONG) for i in range(8)], drop_equal_groups=False)
    assert count(group, Selection.KEPT) == 4
    assert [a for a in group.advantages if a is not None] == [0.0] * 4


def test_a_group_with_nothing_scored_is_not_trainable() -> None:
    group = decide([make_trace(i, UNDECIDED) for i in range(8)], drop_equal_groups=False)
    assert set(group.selections) == {Selection.UNSCORED}
    assert not is_trainable(group)


def test_penalties_decide_in_release_mode() -> None:
    statuses = [ToolStatus.RAISED, ToolStatus.OK, ToolStatus.TIMED_OUT, ToolStatus.NO_OUTPUT]
    traces = [make_trace(i, RIGHT, status=status) for i, status in enumerate(statuses)]
    group = decide(traces + [make_trace(i, WRONG) for i in range(4, 8)], selection="release")
    assert group.error_penalties[:4] == (1.0, 0.0, 1.0, 0.0)
    assert [s is Selection.KEPT for s in group.selections[:4]] == [False, True, False, True]


def test_a_batch_lacks_the_groups_that_were_dropped() -> None:
    mixed = decide([make_trace(i, RIGHT if i < 4 else WRONG) for i in range(8)])
    equal = decide([make_trace(i, WRONG) for i in range(8)])
    assert num_missing_groups([mixed, equal, mixed], num_wanted=4) == 2
    assert num_missing_groups([mixed] * 5, num_wanted=4) == 0


@pytest.mark.parametrize(
    ("penalty", "kept"), [(Penalty.BOTH, {4, 5}), (Penalty.ERRORS, {2, 3}), (Penalty.FORMAT, {0, 1})]
)
def test_the_chosen_penalty_decides_which_successes_are_kept(penalty: Penalty, kept: set[int]) -> None:
    failing = [make_trace(i, RIGHT, status=ToolStatus.RAISED) for i in (0, 1)]
    rambling = [make_trace(i, RIGHT) for i in (2, 3)]
    middling = [replace(trace, turns=trace.turns[1:] * 4) for trace in (make_trace(i, RIGHT) for i in (4, 5))]
    wrong = [make_trace(i, WRONG) for i in range(6, 12)]
    blocks = [1, 1, 3, 3, 2, 2, *[1] * 6]
    settings = RocSettings(group_size=4, selection="release", penalty=penalty)
    traces = failing + rambling + middling + wrong
    group = decide_group(traces, blocks, settings, np.random.default_rng(0), group_id="g", step=3)
    assert {i for i in range(6) if group.selections[i] is Selection.KEPT} == kept
    assert group.error_penalties[:6] == (1.0, 1.0, 0.0, 0.0, 0.5, 0.5)
    assert group.format_penalties[:6] == (0.0, 0.0, 1.0, 1.0, 0.25, 0.25)
    assert group.penalty == penalty


def test_rollouts_of_two_problems_are_refused() -> None:
    other = Trace("t9", "q", (0,), "", (), Outcome.TRUNCATED, reward=0.0)
    with pytest.raises(UserError, match="rollouts of 2 problems"):
        decide([make_trace(0, RIGHT), other])


def test_importing_the_algorithm_leaves_torch_alone() -> None:
    code = "import sys, rstar2.algo; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_truncated_rollouts_are_wrong_or_are_left_out() -> None:
    traces = [
        make_trace(0, RIGHT),
        make_trace(1, WRONG),
        make_trace(2, WRONG, outcome=Outcome.TRUNCATED),
        make_trace(3, RIGHT),
    ]
    assert decide(traces).rewards == (1.0, 0.0, 0.0, 1.0)
    group = decide(traces, overlong_filtering=True)
    assert group.rewards == (1.0, 0.0, None, 1.0)
    assert group.selections == (Selection.KEPT, Selection.KEPT, Selection.UNSCORED, Selection.KEPT)
    assert group.advantages[2] is None and group.error_penalties[2] is None


def test_form_is_rewarded_whatever_the_answer_and_makes_no_success() -> None:
    traces = [make_trace(0, RIGHT), make_trace(1, WRONG), make_trace(2, WRONG)]
    settings = RocSettings(group_size=4, format_reward=0.25)
    group = decide_group(traces, [1, 1, 0], settings, np.random.default_rng(0), group_id="g", step=0)
    assert group.rewards == (1.25, 0.25, 0.0)
    assert group.is_success == group.is_right == (True, False, False)
    assert group.advantages[0] > group.advantages[1] > group.advantages[2]  # type: ignore[operator]
    all_wrong = decide_group(traces[1:], [1, 0], settings, np.random.default_rng(0), group_id="g", step=0)
    assert is_trainable(all_wrong), "form alone tells its rollouts apart"


def test_repeated_runs_of_tokens_weigh_against_a_success() -> None:
    said = Turn(tuple(range(40)), (-0.1,) * 40, "x", StopReason.END_OF_TURN)
    again = replace(said, token_ids=tuple(range(20)) * 2)
    fresh = replace(said, token_ids=tuple(range(100, 140)))
    honest, repetitive = (
        replace(make_trace(index, RIGHT), turns=turns) for index, turns in enumerate([(said, fresh), (said, again)])
    )
    group = decide([honest, repetitive, make_trace(2, WRONG)], penalty=Penalty.REPETITION)
    # Of its 50 runs of 16 tokens ten were there before: the first five of each half of the second turn.
    assert group.repetition_penalties == (0.0, pytest.approx(0.2), 0.0)
    assert [penalty_of(group, index) for index in (0, 1)] == pytest.approx([0.5, 0.7])
    assert not decide([honest, repetitive]).repetition_penalties
