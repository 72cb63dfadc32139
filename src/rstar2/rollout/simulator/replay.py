"""A workload from what really happened: the traces of one step of a run directory."""

from pathlib import Path

from rstar2.errors import UserError
from rstar2.records import RunView, Trace
from rstar2.rollout.facts import RolloutSpec
from rstar2.rollout.simulator.workload import PlannedRollout, PlannedTurn, Workload


def replay(run: Path, step: int | None = None) -> Workload:
    """The rollouts of a step, the last one unless said otherwise, problem by problem."""
    view = RunView(run)
    steps = view.trace_steps()
    if not steps:
        raise UserError(f"{run} has no traces to replay")
    chosen = steps[-1] if step is None else step
    traces = [trace for trace in view.traces(chosen) if any(turn.token_ids for turn in trace.turns)]
    if not traces:
        raise UserError(f"{run} has no trace with sampled tokens in step {chosen}")
    traces.sort(key=lambda trace: (trace.group_id or trace.problem_id, trace.sample_index, trace.id))
    # The limit is not in the traces; the longest response is what the run needed.
    max_response_tokens = max(trace.num_response_tokens for trace in traces)
    return Workload(f"{run.name}-step-{chosen}", tuple(_planned(trace, max_response_tokens) for trace in traces))


def _planned(trace: Trace, max_response_tokens: int) -> PlannedRollout:
    spec = RolloutSpec(trace.id, trace.group_id or trace.problem_id, len(trace.prompt_ids), max_response_tokens)
    sampled = [turn for turn in trace.turns if turn.token_ids]
    turns = [
        PlannedTurn(len(turn.token_ids), len(turn.appended_ids), turn.tool_s)
        if turn is not sampled[-1]
        else PlannedTurn(len(turn.token_ids))
        for turn in sampled
    ]
    return PlannedRollout(spec, tuple(turns))
