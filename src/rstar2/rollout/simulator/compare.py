"""Runs the same workload with several policies: what `rstar2 simulate` prints."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from rstar2.rollout.policies import make_policy
from rstar2.rollout.simulator.bounds import lower_bound_s
from rstar2.rollout.simulator.simulate import Fleet, SimulationResult, simulate
from rstar2.rollout.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    workload: str
    lower_bound_s: float
    results: dict[str, SimulationResult]
    """The result of each policy."""

    def as_json(self) -> dict[str, object]:
        return {
            "lower_bound_s": round(self.lower_bound_s, 3),
            "policies": {
                policy: {
                    "makespan_s": round(result.makespan_s, 3),
                    "recomputed_tokens": result.recomputed_tokens,
                    "generated_tokens": result.generated_tokens,
                    "idle_share": round(result.idle_share, 4),
                    "preemptions": result.preemptions,
                }
                for policy, result in self.results.items()
            },
        }


def compare(
    workloads: Sequence[Workload],
    policies: Sequence[str],
    fleet: Fleet,
    *,
    keeps_spans: bool,
    num_processes: int,
    on_done: Callable[[], None],
) -> list[PolicyComparison]:
    """Every workload with every policy, on `num_processes` processes; `on_done` is called after each."""
    for policy in policies:
        make_policy(policy)
    with ProcessPoolExecutor(num_processes) as pool:
        futures = {
            (number, policy): pool.submit(_simulate, workload, policy, fleet, keeps_spans)
            for number, workload in enumerate(workloads)
            for policy in policies
        }
        for future in futures.values():
            future.add_done_callback(lambda _: on_done())
        return [
            PolicyComparison(
                workload.name,
                lower_bound_s(workload, fleet.model, fleet.num_engines),
                {policy: futures[number, policy].result() for policy in policies},
            )
            for number, workload in enumerate(workloads)
        ]


def _simulate(workload: Workload, policy: str, fleet: Fleet, keeps_spans: bool) -> SimulationResult:
    return simulate(workload, make_policy(policy), fleet, keeps_spans=keeps_spans)
