"""Resampling over random groups: exact numbers, blind where it must be, and the distribution it promises."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.algo import error_penalties, format_penalties, group_advantages, quotas, resample, rewards_are_equal
from rstar2.extensions import SELECTIONS
from rstar2.grading import count_balanced_answer_blocks

pytestmark = pytest.mark.property

ALL_SELECTIONS = st.sampled_from(list(SELECTIONS))
CHOOSING = st.sampled_from(["paper", "quotas", "release", "random"])
BY_CLASS = st.sampled_from(["paper", "quotas", "release"])
UNWEIGHTED_FAILURES = st.sampled_from(["paper", "quotas"])
SEEDS = st.integers(0, 2**32 - 1)
PENALTIES = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]) | st.floats(0, 2)


@st.composite
def groups(draw: st.DrawFn, *, scored_only: bool = False) -> tuple[int, np.ndarray, np.ndarray]:
    """G, then the rewards and penalties of 2G rollouts; NaN where there is no reward."""
    group_size = draw(st.integers(2, 16))
    values = [0.0, 1.0] if scored_only else [0.0, 1.0, np.nan]
    rewards = draw(st.lists(st.sampled_from(values), min_size=2 * group_size, max_size=2 * group_size))
    penalties = draw(st.lists(PENALTIES, min_size=2 * group_size, max_size=2 * group_size))
    return group_size, np.array(rewards), np.array(penalties)


def choose(rewards: np.ndarray, penalties: np.ndarray, group_size: int, selection: str, seed: int) -> np.ndarray:
    return resample(rewards, penalties, num_kept=group_size, selection=selection, rng=np.random.default_rng(seed))


@settings(deadline=None)
@given(groups(scored_only=True), CHOOSING, SEEDS)
def test_exactly_g_of_2g_are_kept(group: tuple[int, np.ndarray, np.ndarray], selection: str, seed: int) -> None:
    group_size, rewards, penalties = group
    assert choose(rewards, penalties, group_size, selection, seed).sum() == group_size


@settings(deadline=None)
@given(groups(), ALL_SELECTIONS, SEEDS)
def test_what_has_no_reward_is_never_kept_and_nothing_else_is_lost(
    group: tuple[int, np.ndarray, np.ndarray], selection: str, seed: int
) -> None:
    group_size, rewards, penalties = group
    scored = ~np.isnan(rewards)
    kept = choose(rewards, np.where(scored, penalties, np.nan), group_size, selection, seed)
    assert not (kept & ~scored).any()
    assert kept.sum() == (scored.sum() if selection == "off" else min(group_size, scored.sum()))


@settings(deadline=None)
@given(groups(), BY_CLASS, SEEDS)
def test_classes_are_kept_in_proportion_and_none_is_lost(
    group: tuple[int, np.ndarray, np.ndarray], selection: str, seed: int
) -> None:
    group_size, rewards, penalties = group
    kept = choose(rewards, penalties, group_size, selection, seed)
    num_scored = np.sum(~np.isnan(rewards))
    for reward in (0.0, 1.0):
        num_sampled, num_kept = np.sum(rewards == reward), np.sum(kept & (rewards == reward))
        assert num_kept >= min(2 if group_size >= 4 else 1, num_sampled)
        if num_sampled >= 5 and num_scored - num_sampled >= 5:
            share = min(1.0, group_size / num_scored)
            assert abs(num_kept - share * num_sampled) <= 0.5 + 1e-9
    if not rewards_are_equal(rewards[~np.isnan(rewards)]):
        assert not rewards_are_equal(rewards[kept])


@settings(deadline=None)
@given(st.integers(0, 64), st.integers(0, 64), st.integers(1, 40))
def test_quotas_are_exact_and_possible(num_successes: int, num_failures: int, num_kept: int) -> None:
    kept_successes, kept_failures = quotas(num_successes, num_failures, num_kept)
    assert kept_successes + kept_failures == min(num_kept, num_successes + num_failures)
    assert 0 <= kept_successes <= num_successes
    assert 0 <= kept_failures <= num_failures
    # Neither class is favoured but for a tie between equals.
    if num_successes != num_failures:
        assert quotas(num_failures, num_successes, num_kept) == (kept_failures, kept_successes)


@settings(deadline=None)
@given(groups(), UNWEIGHTED_FAILURES, SEEDS, st.data())
def test_failures_are_never_weighted(
    group: tuple[int, np.ndarray, np.ndarray], selection: str, seed: int, data: st.DataObject
) -> None:
    """No penalty whatever, of a failure or of a success, changes which failures are kept."""
    group_size, rewards, penalties = group
    others = np.array(data.draw(st.lists(PENALTIES, min_size=len(rewards), max_size=len(rewards))))
    failures = rewards == 0
    first = choose(rewards, penalties, group_size, selection, seed)
    second = choose(rewards, others, group_size, selection, seed)
    np.testing.assert_array_equal(first[failures], second[failures])
    third = choose(rewards, np.where(failures, np.nan, penalties), group_size, selection, seed)
    np.testing.assert_array_equal(first, third)


def released_choice(rewards: list[float], penalties: list[float], num_kept: int) -> set[int]:
    """The rules of the released roc.py, restated plainly, with its default of two of each class."""
    failures = sorted((i for i, reward in enumerate(rewards) if reward <= 0), key=lambda i: penalties[i])
    successes = sorted((i for i, reward in enumerate(rewards) if reward > 0), key=lambda i: penalties[i])
    num_failures = round(len(failures) * num_kept / len(rewards))
    num_successes = round(len(successes) * num_kept / len(rewards))
    if num_failures <= min(2, len(failures)):
        num_failures = min(2, len(failures))
        num_successes = num_kept - num_failures
    if num_successes <= min(2, len(successes)):
        num_successes = min(2, len(successes))
        num_failures = num_kept - num_successes
    return {*successes[:num_successes], *failures[:num_failures]}


@settings(deadline=None, max_examples=500)
@given(groups(scored_only=True), SEEDS)
def test_release_is_the_released_rule(group: tuple[int, np.ndarray, np.ndarray], seed: int) -> None:
    group_size, rewards, penalties = group
    expected = released_choice(rewards.tolist(), penalties.tolist(), group_size)
    if group_size < 4 or len(expected) != group_size:
        return  # the release refuses these: two of each class do not fit, or its two roundings do not add up
    assert set(np.flatnonzero(choose(rewards, penalties, group_size, "release", seed))) == expected


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<answer>", "</answer>", "x", "\n"]), max_size=12))
def test_release_sees_no_answer_block_where_tags_are_unbalanced(parts: list[str]) -> None:
    text = "".join(parts)
    closed = len(re.findall(r"<answer>.*?</answer>", text, re.DOTALL))
    is_balanced = text.count("<answer>") == text.count("</answer>") == closed
    assert count_balanced_answer_blocks(text) == (closed if is_balanced else 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1))
def test_penalties_stay_within_their_bounds(pairs: list[tuple[int, int]]) -> None:
    first, second = np.array(pairs).T
    calls, failed = np.maximum(first, second), np.minimum(first, second)
    for penalties in (error_penalties(calls, failed), format_penalties(first, second + 1)):
        assert ((penalties >= 0) & (penalties <= 1)).all()


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10, width=16), min_size=2, max_size=32))
def test_advantages_are_centred_and_scaled(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    if np.ptp(rewards) > 1e-6:
        assert advantages.mean() == pytest.approx(0, abs=1e-6)
        assert advantages.std(ddof=1) == pytest.approx(1, abs=1e-6)
        assert np.all(np.diff(advantages[np.argsort(rewards)]) >= 0)


NUM_DRAWS = 20_000


def frequencies(choose_once: Callable[[np.random.Generator], np.ndarray], seed: int) -> dict[tuple[int, ...], float]:
    rng = np.random.default_rng(seed)
    counts = Counter(tuple(np.flatnonzero(choose_once(rng)).tolist()) for _ in range(NUM_DRAWS))
    return {kept: count / NUM_DRAWS for kept, count in counts.items()}


def assert_same_distribution(seen: dict[tuple[int, ...], float], expected: dict[tuple[int, ...], float]) -> None:
    """Each frequency within five standard errors of its exact probability."""
    assert seen.keys() <= expected.keys()
    for kept, probability in expected.items():
        error = (probability * (1 - probability) / NUM_DRAWS) ** 0.5
        assert abs(seen.get(kept, 0.0) - probability) < 5 * error + 1e-9, kept


def successive_draws(weights: Sequence[float], num_kept: int) -> dict[tuple[int, ...], float]:
    """The exact probability of each set when one is drawn after the other by weight, none twice."""
    sets: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(len(weights)), num_kept):
        probability, left = 1.0, sum(weights)
        for index in order:
            probability *= weights[index] / left
            left -= weights[index]
        sets[tuple(sorted(order))] += probability
    return dict(sets)


@pytest.mark.parametrize(
    ("penalties", "num_kept"),
    [([0.0, 0.25, 0.5, 1.0, 2.0, 0.0], 3), ([0.0, 0.0, 0.0, 2.0], 2), ([0.5, 1.5, 0.1, 0.1, 0.9, 0.3, 0.0, 2.0], 4)],
)
def test_paper_mode_draws_successes_with_the_exact_weights(penalties: list[float], num_kept: int) -> None:
    num_successes, num_failures = len(penalties), 2
    rewards = [1.0] * num_successes + [0.0] * num_failures
    group_size = num_kept + 2
    assert quotas(num_successes, num_failures, group_size) == (num_kept, 2)
    seen = frequencies(
        lambda rng: resample(
            rewards, penalties + [9.0] * num_failures, num_kept=group_size, selection="paper", rng=rng, epsilon=0.1
        )[:num_successes],
        seed=11,
    )
    assert_same_distribution(seen, successive_draws([1 / (penalty + 0.1) for penalty in penalties], num_kept))


@pytest.mark.parametrize("selection", ["paper", "quotas"])
def test_failures_are_drawn_uniformly(selection: str) -> None:
    rewards, penalties = [0.0] * 5 + [1.0] * 3, [0.0, 0.5, 1.0, 1.5, 2.0, 0.0, 1.0, 2.0]
    seen = frequencies(lambda rng: resample(rewards, penalties, num_kept=4, selection=selection, rng=rng)[:5], seed=5)
    assert_same_distribution(seen, successive_draws([1.0] * 5, 2))


def test_random_mode_draws_every_set_alike() -> None:
    rewards, penalties = [0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0, 2.0, 0.0, 1.0, 0.5, 0.0]
    seen = frequencies(lambda rng: resample(rewards, penalties, num_kept=3, selection="random", rng=rng), seed=3)
    assert_same_distribution(seen, successive_draws([1.0] * 6, 3))


@pytest.mark.parametrize("selection", list(SELECTIONS))
def test_the_same_group_in_any_order_gives_the_same_distribution(selection: str) -> None:
    """Compared with the first order's frequencies, brought back to it; two samples, so the tolerance is for both."""
    rewards = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, np.nan])
    penalties = np.array([0.0, 0.0, 0.5, 1.5, 0.0, 1.0, 2.0, np.nan])
    permutation = np.random.default_rng(1).permutation(len(rewards))

    def choose_permuted(rng: np.random.Generator) -> np.ndarray:
        kept = np.empty(len(rewards), dtype=bool)
        kept[permutation] = resample(
            rewards[permutation], penalties[permutation], num_kept=4, selection=selection, rng=rng
        )
        return kept

    straight = frequencies(lambda rng: resample(rewards, penalties, num_kept=4, selection=selection, rng=rng), seed=1)
    permuted = frequencies(choose_permuted, seed=2)
    for kept in straight.keys() | permuted.keys():
        mean = (straight.get(kept, 0.0) + permuted.get(kept, 0.0)) / 2
        error = (2 * mean * (1 - mean) / NUM_DRAWS) ** 0.5
        assert abs(straight.get(kept, 0.0) - permuted.get(kept, 0.0)) <= 5 * error + 1e-9, kept
