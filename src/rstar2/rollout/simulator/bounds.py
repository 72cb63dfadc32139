"""Lower bounds of the makespan: of any schedule, and of any schedule that cannot see into the future.

Any schedule: max(total work / capacity, longest rollout). Total work: every sampled token reads its context from the
cache once, and every token goes through the linear layers once. The weights are read once a step; an engine whose cache
holds C tokens serves at most C tokens of context a step, so the contexts of all steps together, divided by C, bound the
number of steps from below (prompts, which siblings share, are left out of that count). Longest rollout: alone on an
engine, with its prompt in the cache, and its tools; a branch of a tree begins when those that it waits for have ended.

The informed bound: the first one takes the caches as full from the first step to the last. Yet every rollout begins
with nothing, its length shows only when it ends, and no step is over before its last rollout is. This bound keeps all
of that and leaves out the rest: rollouts are a divisible fluid, engines perfectly balanced and forecasts of sums exact;
tools and prefill take no time; nothing is cancelled, since nothing overflows. A plan says how much of each kind of
problem starts at each moment. Of what started s steps ago, the share that is longer than s still runs and holds s
tokens each. The plan must never need more than the cache; and of all rollouts of the fleet, at most one in expectation
may still run at the end. The fewest steps for which there is such a plan are found by bisection, each trial a linear
program.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.special import ndtr, ndtri

from rstar2.rollout.simulator.hardware import EngineModel
from rstar2.rollout.simulator.workload import PlannedRollout, Workload, WorkloadShape


def lower_bound_s(workload: Workload, engine: EngineModel, num_engines: int) -> float:
    ends_s: dict[str, float] = {}
    for rollout in workload.rollouts:
        begin_s = max((ends_s[name] for name in rollout.after), default=0.0)
        ends_s[rollout.spec.rollout] = begin_s + alone_s(rollout, engine)
    return max(work_s(workload, engine) / num_engines, *ends_s.values())


def alone_s(rollout: PlannedRollout, engine: EngineModel) -> float:
    """Seconds that the rollout takes alone on an engine."""
    total_s, context = 0.0, rollout.spec.num_prompt_tokens
    for turn in rollout.turns:
        total_s += engine.decode_s(1, context, turn.num_sampled_tokens - 1) + engine.decode_s(1, 0, 1) + turn.tool_s
        context += turn.num_sampled_tokens + turn.num_appended_tokens
    return total_s


def work_s(workload: Workload, engine: EngineModel) -> float:
    """Engine seconds that no schedule can avoid."""
    num_read, num_held, num_sampled, num_appended = 0, 0, 0, 0
    prompts: dict[str, int] = {}
    for rollout in workload.rollouts:
        if not rollout.after:  # what is before a branch may be cached
            prompts[rollout.spec.problem] = rollout.spec.num_prompt_tokens
        response = 0
        for turn in rollout.turns:
            # The first token of a turn comes out of its prefill; the others read response, response + 1, … tokens.
            num_steps = turn.num_sampled_tokens - 1
            held = num_steps * response + num_steps * (num_steps - 1) // 2
            num_held += held
            num_read += held + num_steps * rollout.spec.num_prompt_tokens
            response += turn.num_sampled_tokens + turn.num_appended_tokens
            num_sampled += turn.num_sampled_tokens
            num_appended += turn.num_appended_tokens
    least_steps = max(num_held / engine.num_cache_tokens, num_sampled / engine.max_num_seqs)
    num_linear = num_sampled + num_appended + sum(prompts.values())
    linear_s = max(least_steps * engine.weights_s, num_linear * engine.linear_token_s)
    sampled_s = num_sampled * engine.sampled_token_s
    return num_read * engine.cached_token_s + linear_s + sampled_s + least_steps * engine.overhead_s


Floats = npt.NDArray[np.float64]

NUM_BINS = 48
"""Moments in the life of a rollout, up to the longest; twice as many change the result by less than 1%."""
NUM_KINDS = 12
"""Problems are sorted into this many kinds, from easy to hard."""
POINTS_PER_BIN = 16


def informed_bound_s(
    workload: Workload, shape: WorkloadShape, engine: EngineModel, num_engines: int, *, knows_problems: bool
) -> float:
    """The informed bound, in seconds, of a workload drawn from `shape`. `knows_problems`: the mean length of each
    problem's rollouts is known from the start; otherwise only the mean of all."""
    kinds = _Kinds.of(shape, knows_problems)
    num_rollouts = len(workload.rollouts)
    bin_steps = shape.max_response_tokens / NUM_BINS
    cache = engine.num_cache_tokens * num_engines / num_rollouts
    num_bins = _fewest_bins(kinds, cache, 1 / num_rollouts)
    least_steps = float((kinds.weight @ kinds.held).sum()) * bin_steps / cache
    return work_s(workload, engine) / num_engines + (num_bins * bin_steps - least_steps) * (
        engine.weights_s + engine.overhead_s
    )


class _Kinds:
    """For each kind of problem: its share of all, the tokens that one of its rollouts holds in expectation in each bin
    of its life, and the share of its rollouts that outlives each bin."""

    def __init__(self, mu: Floats, spread: float, max_response_tokens: int) -> None:
        self.weight = np.full(len(mu), 1 / len(mu))
        ages = (np.arange(NUM_BINS * POINTS_PER_BIN) + 0.5) * max_response_tokens / (NUM_BINS * POINTS_PER_BIN)
        held = ages * ndtr((mu[:, None] - np.log(ages)) / spread)
        self.held: Floats = held.reshape(len(mu), NUM_BINS, POINTS_PER_BIN).mean(axis=2)
        ends = np.arange(1, NUM_BINS) * max_response_tokens / NUM_BINS
        alive = ndtr((mu[:, None] - np.log(ends)) / spread)
        self.alive: Floats = np.concatenate([np.ones((len(mu), 1)), alive, np.zeros((len(mu), 1))], axis=1)

    @classmethod
    def of(cls, shape: WorkloadShape, knows_problems: bool) -> "_Kinds":
        middle = float(np.log(shape.median_response_tokens))
        if not knows_problems:
            spread = float(np.hypot(shape.spread_between, shape.spread_within))
            return cls(np.array([middle]), spread, shape.max_response_tokens)
        quantiles = ndtri((np.arange(NUM_KINDS) + 0.5) / NUM_KINDS)
        return cls(middle + shape.spread_between * quantiles, shape.spread_within, shape.max_response_tokens)


def _fewest_bins(kinds: _Kinds, cache: float, max_late: float) -> int:
    too_few, enough = NUM_BINS - 1, NUM_BINS
    while not _is_possible(kinds, enough, cache, max_late):
        too_few, enough = enough, 2 * enough
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if _is_possible(kinds, middle, cache, max_late):
            enough = middle
        else:
            too_few = middle
    return enough


def _is_possible(kinds: _Kinds, num_bins: int, cache: float, max_late: float) -> bool:
    """Whether some plan ends in `num_bins` bins. A plan has one number for each kind and each bin to start in."""
    num_kinds = len(kinds.weight)
    used = np.zeros((num_bins, num_kinds, num_bins))
    late = np.zeros((num_kinds, num_bins))
    for start in range(num_bins):
        num_left = min(NUM_BINS, num_bins - start)
        used[start : start + num_left, :, start] = kinds.held[:, :num_left].T
        late[:, start] = kinds.alive[:, num_left]
    size = num_kinds * num_bins
    limits = np.concatenate([used.reshape(num_bins, size) / cache, late.reshape(1, size) / max_late])
    total = np.kron(np.eye(num_kinds), np.ones((1, num_bins)))
    result = linprog(
        np.zeros(size), A_ub=limits, b_ub=np.ones(num_bins + 1), A_eq=total, b_eq=kinds.weight, method="highs"
    )
    return bool(result.status == 0)
