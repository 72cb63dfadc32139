"""Estimates how long a batch of rollouts takes on the recipe's engines, by the scheduler's simulator with the recipe's
own policy.

A large batch is simulated as a slice: a part of the problems on the same part of the engines, so that each engine has
its real load. If one engine alone has too many rollouts, two smaller loads are simulated and extrapolated linearly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rstar2.config import Recipe
from rstar2.plan.devices import Device
from rstar2.plan.memory import block_size
from rstar2.plan.rollout_lengths import draw
from rstar2.rollout.policies import make_policy
from rstar2.rollout.scheduler import Decision, Fact, RolloutEnded, Scheduler
from rstar2.rollout.simulator import EngineModel, Fleet, roofline, simulate
from rstar2.rollout.simulator.hardware import Hardware, ModelShape
from rstar2.rollout.simulator.workload import WorkloadShape

_AMPLE_BYTES = 1e15
"""A memory size for a roofline that leaves the cache unlimited."""


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A batch of problems with the same number of rollouts each, of one shape."""

    shape: WorkloadShape
    num_problems: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class Generation:
    """Times of a full batch; rates and means are of the simulated part."""

    generate_s: float
    tools_s: float
    """The part of the makespan that the last 1% of rollouts spent in tool calls on average."""
    num_calls: float
    num_rollouts: int
    num_simulated: int
    mean_context_tokens: float
    """The mean number of tokens of prompt and response of a rollout."""
    mean_pairs: float
    """Token pairs that attention computes for one rollout."""
    idle_share: float

    @property
    def makespan_s(self) -> float:
        return self.generate_s + self.tools_s


class _RecordsEnds:
    """Wraps a policy, and records the order in which rollouts ended."""

    def __init__(self, policy: Scheduler) -> None:
        self._policy = policy
        self.wants_reports = policy.wants_reports
        self.ended: list[str] = []

    def handle(self, fact: Fact) -> Sequence[Decision]:
        if isinstance(fact, RolloutEnded):
            self.ended.append(fact.rollout)
        return self._policy.handle(fact)


# Shares of the data sheet that the embedded engine reaches on an H200, from 135M to 7B parameters (docs/plan.md).
_EMBEDDED_BANDWIDTH_EFFICIENCY = 0.85
_EMBEDDED_FLOPS_EFFICIENCY = 0.6
_EMBEDDED_OVERHEAD_S = 0.0005


def engine_hardware(recipe: Recipe, device: Device) -> Hardware:
    """The device's hardware, with the shares of its data sheet that the recipe's engine reaches."""
    if recipe.engine.kind != "embedded" or not device.is_gpu:
        return device.hardware
    return replace(
        device.hardware,
        bandwidth_efficiency=_EMBEDDED_BANDWIDTH_EFFICIENCY,
        flops_efficiency=_EMBEDDED_FLOPS_EFFICIENCY,
    )


def engine_model(recipe: Recipe, device: Device, shape: ModelShape) -> EngineModel:
    """The device's roofline, with the recipe's own limits; the size of the cache is set elsewhere."""
    model = roofline(replace(engine_hardware(recipe, device), memory_bytes=_AMPLE_BYTES), shape, 1.0)
    is_fast = recipe.engine.kind == "embedded" and device.is_gpu
    return replace(
        model,
        overhead_s=_EMBEDDED_OVERHEAD_S if is_fast else device.step_overhead_s,
        max_num_seqs=recipe.engine.max_batch,
        max_num_batched_tokens=recipe.engine.prefill_chunk_tokens,
        block_size=block_size(recipe, device),
    )


def estimate(
    batch: RolloutBatch, policy: str, engine: EngineModel, num_engines: int, max_rollouts: int, seed: int
) -> Generation:
    num_problems_each = batch.num_problems / num_engines
    num_sliced = int(max_rollouts / (num_problems_each * batch.num_samples))
    if num_sliced >= 1:
        num_used = min(num_engines, num_sliced)
        num_problems = max(1, round(num_problems_each * num_used))
        return _run(replace(batch, num_problems=num_problems), batch, policy, Fleet(engine, num_used), seed)
    num_problems = max(1, max_rollouts // (3 * batch.num_samples))
    half = _run(replace(batch, num_problems=num_problems), batch, policy, Fleet(engine, 1), seed)
    full = _run(replace(batch, num_problems=2 * num_problems), batch, policy, Fleet(engine, 1), seed)
    further = (num_problems_each - 2 * num_problems) / num_problems
    slope_s = max(0.0, full.makespan_s - half.makespan_s)
    return replace(
        full,
        generate_s=full.generate_s + further * slope_s,
        num_simulated=half.num_simulated + full.num_simulated,
    )


def _run(part: RolloutBatch, full: RolloutBatch, policy: str, fleet: Fleet, seed: int) -> Generation:
    workload = draw(part.shape, part.num_problems, part.num_samples, seed)
    recording = _RecordsEnds(make_policy(policy))
    result = simulate(workload, recording, fleet)
    plans = {plan.spec.rollout: plan for plan in workload.rollouts}
    last = recording.ended[-max(1, len(recording.ended) // 100) :]
    tools_s = sum(turn.tool_s for rollout in last for turn in plans[rollout].turns) / len(last)
    lengths = [
        plan.spec.num_prompt_tokens + sum(turn.num_sampled_tokens + turn.num_appended_tokens for turn in plan.turns)
        for plan in workload.rollouts
    ]
    num_rollouts = full.num_problems * full.num_samples
    num_calls = sum(len(plan.turns) - 1 for plan in workload.rollouts)
    return Generation(
        generate_s=result.makespan_s - tools_s,
        tools_s=tools_s,
        num_calls=num_calls * num_rollouts / len(lengths),
        num_rollouts=num_rollouts,
        num_simulated=len(lengths),
        mean_context_tokens=sum(lengths) / len(lengths),
        mean_pairs=sum(length**2 / 2 for length in lengths) / len(lengths),
        idle_share=result.idle_share,
    )
