"""The claims of docs/scheduler.md, on an eighth of the fleet."""

import pytest

from rstar2.rollout.policies import make_policy
from rstar2.rollout.simulator import HARDWARE, QWEN3_14B, SHAPES, Fleet, generate, roofline, simulate

pytestmark = pytest.mark.integration

MODEL = roofline(HARDWARE["mi300x"], QWEN3_14B, 0.5)


@pytest.mark.parametrize("name", SHAPES)
def test_kv_aware_costs_little_where_there_is_nothing_to_win(name: str) -> None:
    """With an eighth of the problems, all of `heavy-tail` fits into the caches at once: there holding back costs 6%."""
    workload = generate(name, seed=0, num_problems=64)
    ours = simulate(workload, make_policy("kv-aware"), Fleet(MODEL, 8))
    theirs = simulate(workload, make_policy("least-requests"), Fleet(MODEL, 8))
    assert theirs.makespan_s > 0.92 * ours.makespan_s
    assert ours.recomputed_tokens < 0.02 * ours.generated_tokens


def test_on_the_default_workload_it_is_much_faster_and_recomputes_next_to_nothing() -> None:
    """On an eighth of the fleet, with an eighth of the problems; `rstar2 simulate` shows the whole."""
    workload = generate("default", seed=0, num_problems=64)
    results = {
        name: simulate(workload, make_policy(name), Fleet(MODEL, 8))
        for name in ("static", "least-requests", "kv-aware")
    }
    ours = results["kv-aware"]
    assert results["static"].makespan_s > 1.7 * ours.makespan_s
    assert results["least-requests"].makespan_s > 1.15 * ours.makespan_s
    assert ours.recomputed_tokens < 0.01 * ours.generated_tokens
