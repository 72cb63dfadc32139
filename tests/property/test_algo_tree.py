"""Advantages on random trees: each sampled token is trained once, a tree without forks is flat, and sums are kept."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.algo import RocSettings, decide_group
from rstar2.algo.advantage import dr_grpo, grpo
from rstar2.algo.tree import among_siblings, over_leaves, paths_of, token_advantages
from rstar2.records import Outcome, Selection, StopReason, Trace, Turn, Verdict
from rstar2.records.branches import iterate_traces, stored
from rstar2.records.record_file import RecordWriter
from rstar2.train.learning.update import kept_rollouts

pytestmark = pytest.mark.property

ESTIMATORS = st.sampled_from([over_leaves, among_siblings])


MAX_TOKENS = 4
"""That a leaf samples in a turn. The id of a token says which leaf sampled it, and where."""
LEAF, TURN = 10_000, 100
"""The steps of the ids. A turn that ten leaves forked, each inside the other's, has fewer than `TURN` tokens."""


def sampled(number: int, turn: int, start: int, end: int) -> Turn:
    ids = tuple(LEAF * number + TURN * turn + place for place in range(start, end))
    return Turn(ids, tuple(-float(token_id) for token_id in ids), "text", StopReason.END_OF_TURN)


def behind(first: Turn, second: Turn) -> Turn:
    return replace(second, token_ids=first.token_ids + second.token_ids, log_probs=first.log_probs + second.log_probs)


def beginning(turn: Turn, num_tokens: int) -> Turn:
    return replace(turn, token_ids=turn.token_ids[:num_tokens], log_probs=turn.log_probs[:num_tokens])


def trace(number: int, turns: Sequence[Turn], reward: float) -> Trace:
    return Trace(
        f"t{number}",
        "p",
        (1,),
        "prompt",
        tuple(turns),
        Outcome.ANSWERED,
        verdict=Verdict.RIGHT if reward else Verdict.WRONG,
        reward=reward,
    )


@st.composite
def trees(draw: st.DrawFn, *, is_flat: bool = False) -> list[Trace]:
    """Leaves that continue the prompt or one before them, before any of its own tokens but the first of its first turn.
    A point of what a leaf shares is its parent's."""
    traces = list[Trace]()
    for number in range(draw(st.integers(2, 10))):
        reward = draw(st.sampled_from([0.0, 1.0]))
        parent = draw(st.sampled_from([None, *([] if is_flat else traces)]))
        num_shared, num_tokens, shared = 0, 0, ()
        if parent is not None:
            num_shared = draw(st.integers(parent.num_shared_turns, len(parent.turns) - 1))
            first = parent.num_shared_tokens + 1 if num_shared == parent.num_shared_turns else 0
            turn = parent.turns[num_shared]
            if first >= len(turn.token_ids):
                parent, num_shared = None, 0
            else:
                num_tokens = draw(st.integers(first, len(turn.token_ids) - 1))
                shared = parent.turns[:num_shared]
        lengths = draw(st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=3))
        own = [sampled(number, num_shared + n, 0, length) for n, length in enumerate(lengths)]
        if num_tokens:
            rest = sampled(number, num_shared, num_tokens, num_tokens + lengths[0])
            own[0] = behind(beginning(parent.turns[num_shared], num_tokens), rest)
        leaf = trace(number, [*shared, *own], reward)
        if parent is not None:
            leaf = replace(leaf, parent=parent.id, num_shared_turns=num_shared, num_shared_tokens=num_tokens)
        traces.append(leaf)
    return traces


def rewards_of(traces: list[Trace]) -> np.ndarray:
    return np.array([trace.reward for trace in traces])


@given(trees())
def test_a_path_holds_the_tokens_of_its_leaf_and_says_who_sampled_them(traces: list[Trace]) -> None:
    for leaf, path in zip(traces, paths_of(traces), strict=True):
        ids = [
            token_id
            for segment in path
            for token_id in traces[segment.leaf].turns[segment.turn].token_ids[segment.start : segment.end]
        ]
        assert ids == [token_id for turn in leaf.turns for token_id in turn.token_ids]
        assert [token_id // LEAF for token_id in ids] == [s.leaf for s in path for _ in range(s.num_tokens)]
    num_sampled = len({token_id for leaf in traces for turn in leaf.turns for token_id in turn.token_ids})
    assert sum(leaf.num_generated_tokens for leaf in traces) == num_sampled
    assert sum(segment.num_tokens for segment in {s for path in paths_of(traces) for s in path}) == num_sampled


@given(trees(), st.data())
def test_every_token_of_a_kept_leaf_is_trained_exactly_once(traces: list[Trace], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(traces), max_size=len(traces)))
    paths = paths_of(traces)
    kept_paths = [path for path, is_kept in zip(paths, kept, strict=True) if is_kept]
    estimator = data.draw(ESTIMATORS)
    of_segment = estimator(kept_paths, rewards_of(traces)[np.array(kept)], grpo)
    wanted = {segment for path in kept_paths for segment in path}
    assert of_segment.keys() == wanted
    trained = Counter[int]()
    for leaf, row in zip(traces, token_advantages(paths, kept, of_segment), strict=True):
        ids = [token_id for turn in leaf.turns for token_id in turn.token_ids]
        is_trained = [advantage is not None for num_tokens, advantage in row for _ in range(num_tokens)]
        trained.update(token_id for token_id, learnt in zip(ids, is_trained, strict=True) if learnt)
    leaves = [leaf for leaf, is_kept in zip(traces, kept, strict=True) if is_kept]
    assert trained == Counter({token_id for leaf in leaves for turn in leaf.turns for token_id in turn.token_ids})


@given(trees(is_flat=True), ESTIMATORS, st.sampled_from([grpo, dr_grpo]))
def test_a_tree_without_forks_has_the_advantages_of_flat_rollouts(traces, estimator, estimate) -> None:
    rewards = rewards_of(traces)
    flat = np.zeros(len(rewards)) if len(set(rewards)) == 1 else estimate(rewards)
    of_segment = estimator(paths_of(traces), rewards, estimate)
    for segment, advantage in of_segment.items():
        assert advantage == flat[segment.leaf]


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
    assert replace(tree, token_advantages=()) == flat
    for trace_, leaf, segments in zip(traces, tree.advantages, tree.token_advantages, strict=True):
        assert segments == tuple((len(turn.token_ids), leaf) for turn in trace_.turns)


@given(trees(), st.sampled_from(["leaves", "siblings"]), st.integers(0, 99))
def test_training_masks_and_log_probabilities_follow_the_segments(traces, advantage: str, seed: int) -> None:
    """Log-probabilities of these leaves are minus their ids."""
    settings = RocSettings(group_size=max(1, len(traces) // 2), tree_advantage=advantage, drop_equal_groups=False)
    rng = np.random.default_rng(seed)
    group = decide_group(traces, [1] * len(traces), settings, rng, group_id="g", step=1)
    learnt = Counter[int]()
    for rollout in kept_rollouts(group, {leaf.id: leaf for leaf in traces}):
        ids = [token_id for token_id, is_learnt in zip(rollout.token_ids, rollout.mask, strict=True) if is_learnt]
        assert [-value for value in rollout.engine_log_probs] == ids
        assert sum(num_tokens for num_tokens, _ in rollout.by_segment) == rollout.num_learnt
        learnt.update(ids)
    kept = [leaf for leaf, chosen in zip(traces, group.selections, strict=True) if chosen is Selection.KEPT]
    assert learnt == Counter({token_id for leaf in kept for turn in leaf.turns for token_id in turn.token_ids})


@given(traces=trees())
def test_a_stored_tree_holds_each_token_once_and_is_read_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, traces: list[Trace]
) -> None:
    path: Path = tmp_path_factory.mktemp("tree") / "traces.jsonl"
    with RecordWriter[Trace](path) as writer:
        for leaf in traces:
            writer.append(stored(leaf))
    assert [leaf for leaf, _ in iterate_traces(path)] == traces
    num_stored = sum(len(turn.token_ids) for leaf in traces for turn in stored(leaf).turns)
    assert num_stored == sum(leaf.num_generated_tokens for leaf in traces)
