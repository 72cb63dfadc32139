"""Quotas, modes and advantages on groups small enough to see."""

import numpy as np
import pytest

from rstar2.algo import group_advantages, quotas, resample, rewards_are_equal
from rstar2.errors import UserError
from rstar2.extensions import SELECTIONS

pytestmark = pytest.mark.unit


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("successes", "failures", "kept", "expected"),
    [
        (16, 16, 16, (8, 8)),
        (20, 12, 16, (10, 6)),
        (15, 17, 16, (8, 8)),  # 7.5 and 8.5: the half goes to the rarer class
        (17, 15, 16, (8, 8)),
        (13, 19, 16, (7, 9)),
        (3, 3, 3, (2, 1)),  # neither is rarer: to the successes
        (1, 31, 16, (1, 15)),  # at least min(2, n) of each class
        (2, 30, 16, (2, 14)),
        (3, 29, 16, (2, 14)),
        (30, 2, 16, (14, 2)),
        (31, 1, 16, (15, 1)),
        (0, 32, 16, (0, 16)),
        (32, 0, 16, (16, 0)),
        (1, 3, 2, (1, 1)),  # two of each class do not fit into 2: one of each
        (3, 1, 2, (1, 1)),
        (1, 5, 3, (1, 2)),
        (10, 9, 16, (8, 8)),  # 13 of 32 lost: 8.42 and 7.58
        (5, 5, 16, (5, 5)),  # fewer than asked for: all
        (12, 36, 16, (4, 12)),  # three times as many sampled as kept
    ],
)
def test_quotas(successes: int, failures: int, kept: int, expected: tuple[int, int]) -> None:
    assert quotas(successes, failures, kept) == expected


def test_release_keeps_the_lowest_penalties_of_each_class_and_draws_nothing() -> None:
    rewards = [1, 1, 1, 1, 0, 0, 0, 0]
    penalties = [0.9, 0.1, 0.5, 0.1, 0.5, 0.5, 0.0, 0.5]
    for seed in range(20):
        kept = resample(rewards, penalties, num_kept=4, selection="release", rng=rng(seed))
        assert kept.tolist() == [False, True, False, True, True, False, True, False]


def test_release_needs_the_penalties_of_failures() -> None:
    with pytest.raises(UserError, match="chooses failures by penalty"):
        resample([1, 1, 0, 0], [0, 0, np.nan, 0], num_kept=2, selection="release", rng=rng())


def test_quotas_mode_has_the_balance_of_paper_without_its_weights() -> None:
    rewards, penalties = [1] * 6 + [0] * 10, [0.0] * 3 + [2.0] * 3 + [0.0] * 10
    counts = np.zeros(6)
    for seed in range(400):
        kept = resample(rewards, penalties, num_kept=8, selection="quotas", rng=rng(seed))
        assert kept[:6].sum() == 3
        counts += kept[:6]
    assert counts.min() > 150  # each of six is kept with probability 1/2, whatever its penalty


def test_off_keeps_every_scored_rollout() -> None:
    kept = resample([1, np.nan, 0, 0], [0, np.nan, 0, 0], num_kept=2, selection="off", rng=rng())
    assert kept.tolist() == [True, False, True, True]


def test_one_seed_one_choice() -> None:
    rewards, penalties = np.arange(32) % 2, np.linspace(0, 2, 32)
    for selection in SELECTIONS:
        first, second = (resample(rewards, penalties, num_kept=16, selection=selection, rng=rng(7)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": [[1.0, 0.0]]}, "give one of each for each rollout"),
        ({"penalties": [0.0]}, "give one of each for each rollout"),
        ({"penalties": [np.nan, 0.0]}, "each success needs one"),
        ({"num_kept": 0}, "num_kept is 0"),
        ({"epsilon": 0.0}, "epsilon is 0.0"),
    ],
)
def test_impossible_arguments_are_refused(change: dict[str, object], message: str) -> None:
    arguments = {"rewards": [1.0, 0.0], "penalties": [0.0, 0.0], "num_kept": 1, "selection": "paper", "rng": rng()}
    with pytest.raises(UserError, match=message):
        resample(**(arguments | change))  # type: ignore[arg-type]


def test_advantages_use_the_sample_deviation() -> None:
    # Mean 1/4; squared deviations 9/16 and three times 1/16; divided by 3, the variance is 1/4.
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0]), [1.5, -0.5, -0.5, -0.5])


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0, 0.0], [0.1] * 10])
def test_equal_rewards_have_no_advantage(rewards: list[float]) -> None:
    assert rewards_are_equal(rewards)
    np.testing.assert_array_equal(group_advantages(rewards), np.zeros(len(rewards)))
