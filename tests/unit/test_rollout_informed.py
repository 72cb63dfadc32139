"""The bound of schedulers without foresight lies between the plain bound and what the best policy does."""

import pytest

from rstar2.rollout.policies import make_policy
from rstar2.rollout.simulator import (
    HARDWARE,
    QWEN3_14B,
    SHAPES,
    Fleet,
    generate,
    informed_bound_s,
    lower_bound_s,
    roofline,
    simulate,
)

pytestmark = pytest.mark.unit

MODEL = roofline(HARDWARE["mi300x"], QWEN3_14B, 0.5)


def test_it_lies_between_the_plain_bound_and_kv_aware() -> None:
    workload = generate("default", seed=1, num_problems=16)
    known, unknown = (
        informed_bound_s(workload, SHAPES["default"], MODEL, 2, knows_problems=knows) for knows in (True, False)
    )
    reached_s = simulate(workload, make_policy("kv-aware"), Fleet(MODEL, 2)).makespan_s
    assert lower_bound_s(workload, MODEL, 2) < known < unknown < reached_s


def test_with_many_rollouts_for_each_engine_beginning_and_end_do_not_matter() -> None:
    workload = generate("default", seed=1, num_problems=64)
    informed_s = informed_bound_s(workload, SHAPES["default"], MODEL, 1, knows_problems=False)
    assert informed_s < 1.03 * lower_bound_s(workload, MODEL, 1)
