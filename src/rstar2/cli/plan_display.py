"""How a plan is shown to a person: memory by part, capacity, time by stage, and what all of it rests on."""

from collections.abc import Sequence

from rich.markup import escape

from rstar2.cli.console import Console
from rstar2.cli.tables import print_table
from rstar2.plan import RecipePlan
from rstar2.plan.advice import MAX_MICRO_BATCH_TOKENS
from rstar2.plan.document import mean_context, notes
from rstar2.plan.memory import PARTS
from rstar2.plan.timing import RunTime

GIB = 1 << 30


def print_plan(plan: RecipePlan) -> None:
    console = Console(highlight=False)
    layout = plan.layout
    parts = f"trainer ranks: {layout.num_ranks}, engines: {layout.num_engines}" if layout.is_sharded else "one process"
    console.print(
        f"[bold]{plan.recipe.name}[/]: {plan.recipe.model.name}, {plan.num_params:,} parameters, on "
        f"{layout.num_devices} x {plan.device.name} ({parts})",
        soft_wrap=True,
    )
    _print_memory(console, plan)
    console.print(_micro_batch(plan), soft_wrap=True)
    if plan.run_time is not None:
        for print_part in (_print_cache, _print_steps, _print_stages):
            console.print()
            print_part(console, plan, plan.run_time)
        _print_total(console, plan, plan.run_time)
    console.print("\n[bold]rests on[/]")
    for note in notes(plan):
        console.print(f"  - {escape(note)}", soft_wrap=True)
    if plan.problems:
        console.print("\n[bold red]does not fit[/]")
        for problem in plan.problems:
            console.print(f"  {escape(problem)}", soft_wrap=True)


def _print_memory(console: Console, plan: RecipePlan) -> None:
    columns = [(rank, phase) for rank in plan.ranks for phase in rank.phases]
    rows = [
        (part, *(_gib(phase.parts.get(part, 0)) for _, phase in columns))
        for part in PARTS
        if any(part in phase.parts for _, phase in columns)
    ]
    rows += [
        ("in all", *(_gib(phase.total_bytes) for _, phase in columns)),
        ("may be used", *(_gib(rank.capacity_bytes) for rank, _ in columns)),
        ("fits", *("yes" if phase.total_bytes <= rank.capacity_bytes else "no" for rank, phase in columns)),
    ]
    if any(rank.host_bytes for rank in plan.ranks):
        rows.append(("on the host", *(_gib(rank.host_bytes) for rank, _ in columns)))
    _print_numbers(console, "memory, GiB", [f"{rank.name}: {phase.name}" for rank, phase in columns], rows)


def _micro_batch(plan: RecipePlan) -> str:
    found = plan.micro_batch
    largest = "none" if found.num_largest_tokens is None else f"{found.num_largest_tokens:,}"
    if found.num_largest_tokens == MAX_MICRO_BATCH_TOKENS:
        largest += " or more"
    return (
        f"\ntrain.micro_batch_tokens: {found.num_tokens:,}; largest that fits: {largest}; longest sequence: "
        f"{found.num_longest_tokens:,}"
    )


def _print_cache(console: Console, plan: RecipePlan, run: RunTime) -> None:
    num_tokens, num_engines = plan.engine.num_cache_tokens, plan.layout.num_engines
    names = ("tokens", "rollouts of mean length", "in all", "of longest", "in all")
    rows = []
    for stage in run.stages:
        mean = int(num_tokens / mean_context(plan, stage))
        longest = num_tokens // (plan.recipe.rollout.max_prompt_tokens + stage.max_response_tokens)
        counts = (num_tokens, mean, mean * num_engines, longest, longest * num_engines)
        rows.append((stage.name, *(f"{count:,}" for count in counts)))
    _print_numbers(console, "KV of an engine", names, rows)


def _print_steps(console: Console, _: RecipePlan, run: RunTime) -> None:
    names = ("mean response", "generate", "tools", "train", "sync", "in all")
    rows = []
    for stage in run.stages:
        step = stage.mean
        parts = (step.generate_s, step.tools_s, step.train_s, step.sync_s, step.total_s)
        response = f"{stage.mean_response.first:,.0f}-{stage.mean_response.last:,.0f}"
        rows.append((stage.name, response, *map(_duration, parts)))
    _print_numbers(console, "a step, on average", names, rows)


def _print_stages(console: Console, plan: RecipePlan, run: RunTime) -> None:
    rows: list[tuple[str, ...]] = []
    if plan.recipe.sft is not None:
        rows.append(("warm-up", *[""] * 4, *_cost(plan, run.warm_up_s)))
    for stage in run.stages:
        parts = (stage.num_steps * stage.mean.total_s, stage.filter_s, stage.evaluation_s)
        rows.append((stage.name, f"{stage.num_steps:,}", *map(_duration, parts), *_cost(plan, stage.total_s)))
    rows.append(("in all", *[""] * 4, *_cost(plan, run.total_s)))
    names = ("steps", "of steps", "filter", "evaluation", "in all", "device-hours")
    _print_numbers(console, "stage", names, rows, last_style="bold")


def _print_numbers(
    console: Console,
    title: str,
    names: Sequence[str],
    rows: Sequence[tuple[str, ...]],
    last_style: str | None = None,
) -> None:
    is_right = [False, *[True] * len(names)]
    print_table(console, (title, *names), rows, is_right=is_right, last_style=last_style)


def _print_total(console: Console, plan: RecipePlan, run: RunTime) -> None:
    if any(stage.mean.overlap_s for stage in run.stages):
        console.print("generation runs ahead: a step takes the longer of generating and training")
    if plan.week is not None:
        console.print(
            f"\nthe report's run took {plan.week.report_days:g} days for these stages; planned are "
            f"{plan.week.planned_days:.1f}, {plan.week.ratio:.2f} of that"
        )


def _cost(plan: RecipePlan, total_s: float) -> tuple[str, str]:
    return _duration(total_s), f"{total_s / 3600 * plan.layout.num_devices:,.2f}"


def _duration(seconds: float) -> str:
    """The duration in a unit that is easy to read."""
    if seconds == 0:
        return ""
    for least_s, unit_s, unit in ((172_800, 86_400, "days"), (7200, 3600, "h"), (1800, 60, "min")):
        if seconds >= least_s:
            return f"{seconds / unit_s:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f}" if num_bytes else ""
