"""What is learned of lengths is right on average, and not fooled by what ends first."""

import math

import numpy as np
import pytest

from rstar2.rollout.kv_need import NeedModel
from rstar2.rollout.scheduler import RolloutSpec

pytestmark = pytest.mark.unit

LIMIT = 12_000


def specs(num_problems: int, num_siblings: int, stage: str = "") -> list[RolloutSpec]:
    return [
        RolloutSpec(f"{stage}p{problem}-{sample}", f"{stage}p{problem}", 100, LIMIT, stage)
        for problem in range(num_problems)
        for sample in range(num_siblings)
    ]


def run_up_to(need: NeedModel, lengths: dict[str, int], num_tokens: int) -> None:
    """Every rollout has come to `num_tokens`, or has ended before."""
    for rollout, length in lengths.items():
        if length <= num_tokens:
            need.end(rollout, length)
        else:
            need.observe(rollout, num_tokens)


def draw(rng: np.random.Generator, medians: list[float], num_siblings: int) -> dict[str, int]:
    return {
        f"p{problem}-{sample}": min(LIMIT, round(median * math.exp(0.5 * rng.standard_normal())))
        for problem, median in enumerate(medians)
        for sample in range(num_siblings)
    }


def test_lengths_are_learned_while_most_still_run() -> None:
    rng = np.random.default_rng(1)
    medians = [1500.0 if problem % 2 else 6000.0 for problem in range(64)]
    need = NeedModel()
    need.submit(specs(64, 16))
    run_up_to(need, draw(rng, medians, 16), 2500)
    expected = need.expected_tokens(f"p{problem}" for problem in range(64))
    true_mean = [median * math.exp(0.125) for median in medians]
    ratio = expected / np.array(true_mean)
    assert 0.8 < np.median(ratio[1::2]) < 1.25, "of the short problems almost all have ended"
    assert 0.65 < np.median(ratio[0::2]) < 1.5, "of the long ones almost none"
    # The last problem's endings are not learned yet.
    assert expected[0:62:2].min() > expected[1:62:2].max(), "and no long one is taken for a short one"


def test_a_forecast_of_many_comes_true() -> None:
    rng = np.random.default_rng(2)
    medians = [4000 * math.exp(0.5 * rng.standard_normal()) for _ in range(64)]
    lengths = draw(rng, medians, 16)
    need = NeedModel()
    need.submit(specs(64, 16))
    run_up_to(need, lengths, 3000)
    running = [rollout for rollout, length in lengths.items() if length > 3000]
    forecast = need.forecast(running)
    for horizon, mean, variance in zip(need.horizons, forecast.mean, forecast.variance, strict=True):
        held = sum(3000 + horizon for rollout in running if lengths[rollout] > 3000 + horizon)
        assert abs(held - mean) <= 3 * math.sqrt(variance) + 0.02 * mean + LIMIT


def test_a_forecast_never_goes_beyond_the_limit() -> None:
    need = NeedModel()
    need.submit(specs(1, 4))
    for sample in range(4):
        need.observe(f"p0-{sample}", LIMIT - 1)
    assert need.forecast([f"p0-{sample}" for sample in range(4)]).mean[1:].max() == 0
    assert need.expected_tokens_left("p0-0") <= 1


def test_siblings_err_together() -> None:
    together, apart = NeedModel(), NeedModel()
    together.submit(specs(1, 16))
    apart.submit(specs(16, 1))
    one = together.forecast([f"p0-{sample}" for sample in range(16)])
    many = apart.forecast([f"p{problem}-0" for problem in range(16)])
    assert np.allclose(one.mean, many.mean)
    assert one.variance.max() > 4 * many.variance.max()


def test_stages_are_learned_apart_and_problems_are_remembered() -> None:
    need = NeedModel()
    need.submit(specs(8, 8, "one-"))
    for spec in specs(8, 8, "one-"):
        need.end(spec.rollout, 400 if spec.problem == "one-p0" else 2000)
    need.submit([*specs(8, 8, "two-"), *specs(2, 8, "one-")])
    expected = need.expected_tokens(["one-p0", "one-p1", "two-p0"])
    assert expected[0] < 0.5 * expected[1], "a problem that was short is expected to be short again"
    assert expected[2] > 1.5 * expected[1], "nothing is known yet of the other stage"


def test_turns_after_which_rollouts_end_are_learned() -> None:
    need = NeedModel()
    need.submit(specs(64, 8))
    for spec in specs(64, 8):
        need.observe(spec.rollout, 1000)
        need.begin_turn(spec.rollout)
        if spec.rollout.endswith(("0", "1", "2", "3", "4", "5")):
            need.end(spec.rollout, 1300)
    need.submit(specs(1, 2, "fresh-"))
    early, late = "fresh-p0-0", "fresh-p0-1"
    for rollout in (early, late):
        need.observe(rollout, 1200)
    need.begin_turn(late)
    assert need.expected_tokens_left(late) < need.expected_tokens_left(early)


def learn(medians: list[float], spread: float) -> NeedModel:
    """Half of each problem's responses have ended."""
    rng = np.random.default_rng(3)
    need = NeedModel()
    need.submit(specs(len(medians), 32))
    for problem, median in enumerate(medians):
        for sample in range(16):
            need.end(f"p{problem}-{sample}", min(LIMIT, round(median * math.exp(spread * rng.standard_normal()))))
    return need


@pytest.mark.parametrize(("spread", "first"), [(0.1, "long"), (0.6, "short")])
def test_the_long_may_surprise_more_unless_all_may_reach_the_limit(spread: float, first: str) -> None:
    problems = [f"p{problem}" for problem in range(32)]
    need = learn([2500.0, 5000.0] * 16, spread)
    longest, expected = need.longest_tokens(problems), need.expected_tokens(problems)
    assert (longest > expected).all()
    assert longest.max() <= LIMIT
    short, long = np.median((longest - expected).reshape(16, 2), axis=0)
    assert (short > long) == (first == "short")


def test_what_was_abandoned_is_known_to_be_longer() -> None:
    """Had it ended there, everything would look that short."""
    middles = {}
    for was_abandoned in (False, True):
        need = NeedModel()
        need.submit(specs(8, 16))
        for spec in specs(8, 16):
            need.end(spec.rollout, 2000, was_abandoned=was_abandoned)
        middles[was_abandoned] = float(need.expected_tokens(["p0"])[0])
    assert middles[False] < 3000 < 4000 < middles[True]


def test_submissions_in_the_middle_of_a_step_do_not_forget_what_has_ended() -> None:
    """Problems go on in new ones when their rollouts have ended, as trees do: what is left runs long."""
    rng = np.random.default_rng(3)
    need = NeedModel()
    need.submit(specs(64, 16))
    lengths = draw(rng, [3000.0] * 64, 16)
    run_up_to(need, lengths, 4000)
    before = need.expected_tokens(["p0"])[0]
    assert 0.8 < before / (3000 * math.exp(0.125)) < 1.25
    for number in range(48):
        need.submit([RolloutSpec(f"b{number}", f"p{number}-0/1/0", 2100, 10_000, "branches", f"p{number}-0")])
    running = [f"p{n.removeprefix('p').partition('-')[0]}" for n, length in lengths.items() if length > 4000]
    after = need.expected_tokens(sorted(set(running)))
    assert np.median(after) / (3000 * math.exp(0.125)) < 1.25, "the survivors are not taken for all"


def test_points_of_trees_are_not_remembered_for_ever() -> None:
    need = NeedModel()
    for step in range(3):
        need.submit([RolloutSpec(f"b{step}", f"a{step}/1/0", 200, 1000, "branches", f"a{step}")])
        need.end(f"b{step}", 500)
    need.submit(specs(1, 1))
    assert not need._history
