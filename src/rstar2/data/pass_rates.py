"""How often a run solved each problem when it last tried it, which shows which problems are too easy or too hard.

The numbers come from the groups of a training run, or from the traces of an evaluation. Rollouts without a reward or a
verdict (faults of ours, undecided verdicts) do not count at all.
"""

from dataclasses import dataclass
from pathlib import Path

from rstar2.errors import UserError
from rstar2.records import RunView


@dataclass(frozen=True, slots=True)
class PassRate:
    num_right: int
    num_scored: int


def read_pass_rates(run: Path) -> dict[str, PassRate]:
    """The pass rates by problem id. If several steps tried a problem, the last one counts, because its policy is the
    strongest."""
    view = RunView(run)
    rates = _from_groups(view) if view.group_steps() else _from_traces(view)
    if not rates:
        raise UserError(f"{run} has no scored rollouts to take pass rates from; give a run that has")
    return rates


def _from_groups(view: RunView) -> dict[str, PassRate]:
    rates: dict[str, PassRate] = {}
    for step in view.group_steps():
        for group in view.groups(step):
            num_scored = sum(reward is not None for reward in group.rewards)
            if num_scored:
                rates[group.problem_id] = PassRate(sum(group.is_right), num_scored)
    return rates


def _from_traces(view: RunView) -> dict[str, PassRate]:
    rates: dict[str, PassRate] = {}
    for step in view.trace_steps():
        of_step: dict[str, PassRate] = {}
        for trace in view.traces(step):
            if trace.is_right is None:
                continue
            before = of_step.get(trace.problem_id, PassRate(0, 0))
            of_step[trace.problem_id] = PassRate(before.num_right + trace.is_right, before.num_scored + 1)
        rates.update(of_step)
    return rates
