"""Where a tree is forked next, by facts alone."""

import numpy as np
import pytest

from rstar2.extensions import FORK_POLICIES
from rstar2.rollout.trees import ForkFacts, Leaf, Point, TreeSettings

pytestmark = pytest.mark.unit

RIGHT_AND_WRONG = ForkFacts(
    leaves=(
        Leaf(1.0, True, ((0, 0), (0, 1), (0, 2))),
        Leaf(1.0, True, ((0, 0), (1, 1))),
        Leaf(0.0, False, ((2, 0), (2, 1))),
        Leaf(1.0, True, ((2, 0), (3, 1))),
    ),
    points=(
        Point(0, 0, has_failed=False, next_entropies=(0.1, 0.1)),
        Point(0, 1, has_failed=True, next_entropies=(0.4, 0.8)),
        Point(2, 0, has_failed=False, next_entropies=(0.5, 0.5)),
    ),
)


def chosen(policy: str, num_leaves: int, seed: int = 0) -> list[int]:
    return list(FORK_POLICIES.load(policy)(RIGHT_AND_WRONG, num_leaves, np.random.default_rng(seed)))


def test_uniform_evens_out_the_leaves_below_each_point() -> None:
    assert chosen("uniform", 4) == [1, 0, 1, 2]


def test_uncertainty_prefers_points_that_are_mixed_or_hardly_known() -> None:
    assert chosen("uncertainty", 1) == [1], "one leaf says less than two"
    assert 2 in chosen("uncertainty", 3), "one right and one wrong"
    assert chosen("uncertainty", 3).count(0) <= 1, "two right ones are nearly sure"


def test_entropy_prefers_the_least_certain_continuation_and_then_the_next() -> None:
    assert chosen("entropy", 3) == [1, 2, 1]


def test_random_points_depend_on_the_generator_alone() -> None:
    assert chosen("random", 20, seed=3) == chosen("random", 20, seed=3)
    assert set(chosen("random", 100)) == {0, 1, 2}


@pytest.mark.parametrize("policy", FORK_POLICIES)
def test_every_leaf_gets_a_point(policy: str) -> None:
    assert all(0 <= index < 3 for index in chosen(policy, 17)) and len(chosen(policy, 17)) == 17


def test_leaves_are_spent_in_equal_rounds() -> None:
    assert TreeSettings(4, num_rounds=3).rounds(14) == [4, 3, 3, 4]
    assert TreeSettings(4, num_rounds=9).rounds(6) == [4, 1, 1]
    assert TreeSettings(8).rounds(6) == [6], "as flat rollouts"


def test_points_that_are_admitted() -> None:
    assert TreeSettings(1).admits(3, has_failed=False)
    assert not TreeSettings(1, points="first-result").admits(1, has_failed=True)
    assert TreeSettings(1, points="errors").admits(1, has_failed=True)
    assert not TreeSettings(1, points="errors").admits(0, has_failed=False)
