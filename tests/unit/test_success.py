"""One rule says what a success is: selection, accuracy and pass@k count the same rollouts."""

from dataclasses import replace

import numpy as np
import pytest

from rstar2.algo import RocSettings, choose_rollouts, decide_group
from rstar2.config import parse_recipe
from rstar2.errors import UserError
from rstar2.evals.sample import Sample
from rstar2.records import Outcome, StopReason, Trace, Turn, Verdict
from rstar2.records.trace import THRESHOLD_KEY

pytestmark = pytest.mark.unit

TRACE = Trace("t", "p", (0,), "", (Turn((1,), (-0.1,), "x", StopReason.END_OF_TURN),), Outcome.ANSWERED)


@pytest.mark.parametrize(
    ("verdict", "reward", "threshold", "succeeds"),
    [
        (Verdict.RIGHT, 0.2, None, True),
        (Verdict.RIGHT, 0.2, 0.5, True),
        (Verdict.WRONG, 0.9, 0.5, False),
        (Verdict.NO_ANSWER, 0.9, 0.5, False),
        (None, 0.4, None, False),
        (None, 1.0, None, True),
        (None, 0.4, 0.5, False),
        (None, 0.5, 0.5, True),
        (None, 2.0, 3.0, False),
    ],
)
def test_the_verdict_decides_and_else_the_threshold(
    verdict: Verdict | None, reward: float, threshold: float | None, succeeds: bool
) -> None:
    metadata = {} if threshold is None else {THRESHOLD_KEY: repr(threshold)}
    trace = replace(TRACE, verdict=verdict, reward=reward, metadata=metadata)
    other = replace(trace, id="other", verdict=Verdict.WRONG, reward=0.0)
    group = decide_group([trace, other], [1, 1], RocSettings(1), np.random.default_rng(0), group_id="g", step=1)
    assert (trace.is_right, group.is_right[0], group.is_success[0], Sample.of(trace).is_success) == (succeeds,) * 4


def test_arrays_without_a_word_on_success_have_the_full_reward() -> None:
    """Rewards of 0.5 are failures, so their penalties play no part."""
    settings = RocSettings(group_size=2, penalty_epsilon=1e-9)
    rewards, penalties = [0.5, 0.5, 0.5, 1.0], [0.0, 1.0, 1.0, 0.0]
    kept = sum(choose_rollouts(rewards, penalties, settings, np.random.default_rng(n)).kept for n in range(60))
    assert kept[3] == 60 and min(kept[:3]) > 5


def test_a_recipe_names_the_threshold() -> None:
    text = 'name = "x"\n[model]\nname = "auto"\n[algo]\nsuccess_threshold = {}'
    assert parse_recipe(text.format(0.5)).algo.success_threshold == 0.5
    with pytest.raises(UserError, match="success_threshold"):
        parse_recipe(text.format(0))
