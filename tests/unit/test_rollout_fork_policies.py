"""Where a tree is forked next, by facts alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rstar2.algo.tree import Segment
from rstar2.extensions import FORK_POLICIES
from rstar2.records import StopReason, ToolCall, ToolResult, ToolStatus, Turn
from rstar2.rollout.trees import ForkFacts, Leaf, Point, TreeSettings
from rstar2.rollout.trees.policies import num_affordable

pytestmark = pytest.mark.unit

RIGHT_AND_WRONG = ForkFacts(
    leaves=(
        Leaf(1.0, True, (Segment(0, 0, 0, 10), Segment(0, 1, 0, 10), Segment(0, 2, 0, 30))),
        Leaf(1.0, True, (Segment(0, 0, 0, 10), Segment(1, 1, 0, 20))),
        Leaf(0.0, False, (Segment(2, 0, 0, 20), Segment(2, 1, 0, 50))),
        Leaf(1.0, True, (Segment(2, 0, 0, 20), Segment(3, 1, 0, 70))),
    ),
    points=(
        Point(0, 0, 10, has_failed=False, next_entropies=(0.1, 0.1)),
        Point(0, 1, 10, has_failed=True, next_entropies=(0.4, 0.8)),
        Point(2, 0, 20, has_failed=False, next_entropies=(0.5, 0.5)),
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


def turn(*results: ToolResult, entropies: Sequence[float] = (0.1, 0.3, 0.2)) -> Turn:
    ids = tuple(range(len(entropies)))
    calls = (ToolCall("f()", "f"),) * len(results)
    return Turn(ids, (-1.0,) * len(ids), "text", StopReason.END_OF_TURN, tuple(entropies), calls, results)


DONE = turn(ToolResult(ToolStatus.OK, "1"))
FAILED = turn(ToolResult(ToolStatus.RAISED, "error"))
SAID = turn()


@pytest.mark.parametrize(
    ("points", "copied"),
    [
        ("results", [(DONE,), (DONE, FAILED), (SAID, DONE)]),
        ("first-result", [(DONE,), (SAID, DONE)]),
        ("errors", [(DONE, FAILED)]),
        ("random", [(), (DONE,), (SAID,), (DONE, FAILED), (SAID, DONE)]),
        ("entropy", [(), (DONE,), (SAID,), (DONE, FAILED), (SAID, DONE)]),
    ],
)
def test_states_are_copied_where_a_rule_may_fork(points: str, copied: list[tuple[Turn, ...]]) -> None:
    rule = TreeSettings(1, points=points).rule
    histories = ((), (DONE,), (SAID,), (DONE, FAILED), (SAID, DONE))
    assert [turns for turns in histories if rule.copies(turns)] == copied


def test_a_turn_is_cut_before_its_highest_entropy_or_at_random() -> None:
    rng = np.random.default_rng(0)
    cut = TreeSettings(1, points="entropy").rule.cut
    assert [cut(SAID, first, rng) for first in range(4)] == [1, 1, 2, None]
    assert cut(turn(entropies=(0.5, 0.5)), 0, rng) == 0, "the earliest of equal ones"
    assert cut(replace(SAID, entropies=()), 0, rng) is None, "an engine that reports none"
    random = TreeSettings(1, points="random").rule.cut
    assert {random(SAID, 1, rng) for _ in range(50)} == {1, 2} and random(SAID, 3, rng) is None
    assert TreeSettings(1).rule.cut(SAID, 0, rng) == 0, "after a result, all of the turn is sampled anew"


def test_leaves_below_a_point_inside_a_turn() -> None:
    whole, end = (Segment(0, 0, 0, 4), Segment(0, 0, 4, 10), Segment(0, 1, 0, 5)), Segment(1, 0, 4, 7)
    facts = ForkFacts((Leaf(1.0, True, whole), Leaf(0.0, False, (whole[0], end))), ())
    num_below = [len(facts.below(Point(0, 0, num, has_failed=False))) for num in (1, 4, 5, 10)]
    assert num_below == [2, 2, 1, 1]
    assert len(facts.below(Point(1, 0, 6, has_failed=False))) == 1
    assert [num_affordable(facts, [Point(0, 0, 3, has_failed=False)], num) for num in (7, 8)] == [0, 1], "12 and 4"


def test_tokens_pay_for_leaves_by_what_those_below_their_points_cost() -> None:
    first, second, third = RIGHT_AND_WRONG.points  # 30, 30 and 60 tokens follow them on average; all leaves have 60

    def paid(num_tokens: int, *starts: Point | None) -> int:
        return num_affordable(RIGHT_AND_WRONG, starts, num_tokens)

    assert [paid(num, first, second, third) for num in (-5, 29, 30, 59, 60, 119, 120)] == [0, 0, 1, 1, 2, 2, 3]
    assert [paid(num, None, None) for num in (59, 60, 120, 1000)] == [0, 1, 2, 2], "from the prompt"
    assert paid(100, third, third, first) == 1, "in their order: a cheaper one does not jump the queue"


def test_a_leaf_costs_a_token_at_least() -> None:
    lost = ForkFacts((Leaf(None, False, ()),), ())
    assert num_affordable(lost, [None] * 9, 4) == 4
