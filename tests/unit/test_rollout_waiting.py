"""Which of the waiting rollouts an engine starts next."""

import numpy as np
import pytest

from rstar2.rollout.cache_account import CacheAccount, CacheLimits
from rstar2.rollout.kv_need import NUM_HORIZONS, Forecast
from rstar2.rollout.scheduler import EngineSpeed, RolloutSpec
from rstar2.rollout.waiting_queue import WaitingQueue

pytestmark = pytest.mark.unit

SPEED = EngineSpeed(prefill_token_s=5e-5, step_s=0.008, cached_token_s=4e-8)
LENGTHS = {"short": 500.0, "long": 3000.0, "middle": 1500.0}
LIMITS = CacheLimits(share=1.0, deviations=0.0)


def make_queue(homes: dict[str, tuple[str, ...]] | None = None, max_overtakes: int = 1000) -> WaitingQueue:
    queue = WaitingQueue(max_overtakes, prompt_weight=2.0)
    specs = [RolloutSpec(f"{problem}-{sample}", problem, 100, 4000) for problem in LENGTHS for sample in range(2)]
    queue.submit(specs, homes or dict.fromkeys(LENGTHS, ("elsewhere",)))
    expect(queue, LENGTHS)
    return queue


def expect(queue: WaitingQueue, lengths: dict[str, float]) -> None:
    """Each may exceed what is expected by its whole length, and holds that at the last horizon but one."""
    growth = Forecast.zero(len(lengths))
    growth.mean[:, -2] = list(lengths.values())
    queue.expect(np.array(list(lengths.values())), growth)


def make_room(num_cache_tokens: int) -> CacheAccount:
    room = CacheAccount("here", num_cache_tokens, SPEED)
    room.add(RolloutSpec("resident", "other", 10, 4000), 0)
    return room


def best(queue: WaitingQueue, room: CacheAccount) -> str | None:
    spec = queue.best_for(room, Forecast(np.zeros(NUM_HORIZONS), np.zeros(NUM_HORIZONS)), LIMITS)
    if spec is None:
        return None
    queue.take(spec)
    return spec.rollout


def test_what_may_surprise_most_goes_first_and_siblings_in_their_order() -> None:
    queue, room = make_queue(), make_room(10_000)
    # The first sibling of each problem tells of the others, so all of those come first.
    assert [best(queue, room) for _ in range(6)] == ["long-0", "middle-0", "short-0", "long-1", "middle-1", "short-1"]
    assert queue.num_waiting == 0


def test_a_shorter_one_fits_where_a_longer_one_does_not() -> None:
    queue = make_queue()
    assert best(queue, make_room(2000)) == "middle-0"
    assert best(queue, make_room(1000)) == "short-0"
    assert best(queue, make_room(400)) is None
    assert queue.num_waiting == 4


def test_a_prompt_that_is_there_need_not_fit_again() -> None:
    queue, room = make_queue(), make_room(520)
    assert best(queue, room) is None, "500 for the response, 100 for the prompt, 10 are taken"
    room.add(RolloutSpec("short-9", "short", 0, 4000), 0)
    assert best(queue, room) == "short-0"


def test_between_equals_an_engine_prefers_its_own_and_else_the_oldest() -> None:
    equal = dict.fromkeys(LENGTHS, 1000.0)
    queue = make_queue({"short": ("a",), "long": ("here",), "middle": ("b",)})
    expect(queue, equal)
    assert best(queue, make_room(10_000)) == "long-0"
    queue = make_queue()
    expect(queue, equal)
    assert best(queue, make_room(10_000)) == "short-0"


def test_the_oldest_goes_first_once_it_has_been_overtaken_often_enough() -> None:
    queue, room = make_queue(max_overtakes=2), make_room(10_000)
    assert best(queue, room) == "short-0", "the others were submitted two or more places later"
    assert best(queue, room) == "long-0", "short-1 may now be overtaken by what was submitted next"


def test_an_empty_engine_takes_anything() -> None:
    assert best(make_queue(), CacheAccount("here", 50, SPEED)) == "long-0"
