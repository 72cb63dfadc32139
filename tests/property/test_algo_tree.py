"""Advantages on random trees: each sampled turn is trained once, a tree without forks is flat, and sums are kept."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.algo import RocSettings, decide_group
from rstar2.algo.advantage import dr_grpo, grpo
from rstar2.algo.tree import among_siblings, over_leaves, paths_of, turn_advantages
from rstar2.records import Outcome, StopReason, Trace, Turn, Verdict

pytestmark = pytest.mark.property

ESTIMATORS = st.sampled_from([over_leaves, among_siblings])


def trace(number: int, num_turns: int, reward: float, parent: str = "", num_shared: int = 0) -> Trace:
    turn = Turn((number + 1,), (-1.0,), "text", StopReason.END_OF_TURN)
    return Trace(
        f"t{number}",
        "p",
        (1,),
        "prompt",
        (turn,) * num_turns,
        Outcome.ANSWERED,
        verdict=Verdict.RIGHT if reward else Verdict.WRONG,
        reward=reward,
        parent=parent,
        num_shared_turns=num_shared,
    )


@st.composite
def trees(draw: st.DrawFn, *, is_flat: bool = False) -> list[Trace]:
    """Leaves that continue the prompt or one before them, from any of its turns but the last."""
    traces = list[Trace]()
    for number in range(draw(st.integers(2, 10))):
        forkable = [] if is_flat else [other for other in traces if len(other.turns) > 1]
        parent = draw(st.sampled_from([None, *forkable]))
        num_shared = 0 if parent is None else draw(st.integers(1, len(parent.turns) - 1))
        num_turns = num_shared + draw(st.integers(1, 3))
        reward = draw(st.sampled_from([0.0, 1.0]))
        traces.append(trace(number, num_turns, reward, "" if parent is None else parent.id, num_shared))
    return traces


def rewards_of(traces: list[Trace]) -> np.ndarray:
    return np.array([trace.reward for trace in traces])


@given(trees(), st.data())
def test_every_turn_of_a_kept_leaf_is_trained_exactly_once(traces: list[Trace], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(traces), max_size=len(traces)))
    paths = paths_of(traces)
    assert [len(path) for path in paths] == [len(trace.turns) for trace in traces]
    kept_paths = [path for path, is_kept in zip(paths, kept, strict=True) if is_kept]
    estimator = data.draw(ESTIMATORS)
    of_segment = estimator(kept_paths, rewards_of(traces)[np.array(kept)], grpo)
    wanted = {segment for path in kept_paths for segment in path}
    assert of_segment.keys() == wanted
    rows = turn_advantages(paths, kept, of_segment)
    trained = [
        segment
        for path, row in zip(paths, rows, strict=True)
        for segment, advantage in zip(path, row, strict=True)
        if advantage is not None
    ]
    assert sorted(trained) == sorted(wanted)


@given(trees(is_flat=True), ESTIMATORS, st.sampled_from([grpo, dr_grpo]))
def test_a_tree_without_forks_has_the_advantages_of_flat_rollouts(traces, estimator, estimate) -> None:
    rewards = rewards_of(traces)
    flat = np.zeros(len(rewards)) if len(set(rewards)) == 1 else estimate(rewards)
    of_segment = estimator(paths_of(traces), rewards, estimate)
    for (index, _), advantage in of_segment.items():
        assert advantage == flat[index]


@given(trees())
def test_over_leaves_a_segment_has_the_mean_of_its_leaves(traces: list[Trace]) -> None:
    paths, rewards = paths_of(traces), rewards_of(traces)
    of_segment = over_leaves(paths, rewards, dr_grpo)
    for segment, advantage in of_segment.items():
        below = [reward for path, reward in zip(paths, rewards, strict=True) if segment in path]
        assert advantage == pytest.approx(np.mean(below) - rewards.mean())
    ends = sum(of_segment[path[-1]] for path in paths)
    assert ends == pytest.approx(0, abs=1e-9)


@given(trees())
def test_siblings_sum_to_zero_at_every_fork(traces: list[Trace]) -> None:
    paths, rewards = paths_of(traces), rewards_of(traces)
    of_segment = among_siblings(paths, rewards, dr_grpo)
    forks: dict[tuple, set] = {}
    for path in paths:
        for depth in range(len(path)):
            forks.setdefault(path[:depth], set()).add(path[depth])
    for before, branches in forks.items():
        advantages = [of_segment[segment] for segment in branches]
        if len(branches) > 1:
            assert sum(advantages) == pytest.approx(0, abs=1e-9)
        elif before:
            assert advantages == [of_segment[before[-1]]], "without a fork the advantage goes on"
        else:
            assert advantages == [0.0]


@given(trees(is_flat=True), st.sampled_from(["leaves", "siblings"]), st.integers(0, 99))
def test_a_group_without_forks_is_decided_as_a_flat_one(traces: list[Trace], advantage: str, seed: int) -> None:
    traces = traces[: len(traces) // 2 * 2]
    settings = RocSettings(group_size=len(traces) // 2)
    flat, tree = (
        decide_group(
            traces,
            [1] * len(traces),
            replace(settings, tree_advantage=name),
            np.random.default_rng(seed),
            group_id="g",
            step=1,
        )
        for name in (None, advantage)
    )
    assert replace(tree, turn_advantages=()) == flat
    for trace_, leaf, turns in zip(traces, tree.advantages, tree.turn_advantages, strict=True):
        assert turns == (leaf,) * len(trace_.turns)
