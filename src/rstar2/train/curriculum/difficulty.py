"""The difficulty filter before a stage: it drops problems that the current policy already solves every time."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from rstar2.agent import AgentLimits
from rstar2.config import Recipe, StageSection
from rstar2.engine import Sampling
from rstar2.records import Problem, Trace
from rstar2.rollout.request import RolloutRequest, Rolls
from rstar2.train.seeds import named_seed


async def hard_problems(
    roller: Rolls,
    problems: Sequence[Problem],
    recipe: Recipe,
    stage: StageSection,
    step: int,
    on_trace: Callable[[Trace], None],
) -> tuple[Problem, ...]:
    """The problems that fewer than `drop_solved` of `num_samples` rollouts solved, in their order."""
    wanted = stage.difficulty_filter
    assert wanted is not None
    requests = [
        RolloutRequest(
            problem=problem,
            trace_id=f"f{step:06d}-{stage.name}-{index:06d}-{number:02d}",
            group_id=f"f{step:06d}-{stage.name}-{index:06d}",
            sample_index=number,
            step=step,
            stage=f"filter:{stage.name}",
            seed=named_seed(recipe.seed, "filter", stage.name, problem.id, number),
        )
        for index, problem in enumerate(problems)
        for number in range(wanted.num_samples)
    ]

    def hand_on(trace: Trace) -> None:
        on_trace(replace(trace, metadata={**trace.metadata, "stage": f"filter:{stage.name}"}))

    traces = await roller.run(requests, AgentLimits.of(recipe, stage), Sampling.of(recipe), hand_on)
    num_right = Counter(trace.problem_id for trace in traces if trace.is_right)
    return tuple(problem for problem in problems if num_right[problem.id] < wanted.drop_solved)
