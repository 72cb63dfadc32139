"""`rstar2 simulate`: how long a step of rollouts takes under each scheduling policy, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import note, print_json
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.rollout.simulator import EngineModel, Workload
    from rstar2.rollout.simulator.compare import Comparison


def simulate_command(
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="default, short-tail, heavy-tail or slow-tools; may be repeated. All of them."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="static, round-robin, least-requests, worst-case or kv-aware; may be repeated. All of them.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--replay", help="Replay the traces of this run directory instead of workloads.")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", help="The step to replay; the last one if not given.")] = None,
    engines: Annotated[int, typer.Option("--engines", min=1, help="Number of engines.")] = 64,
    problems: Annotated[int, typer.Option("--problems", min=1, help="Problems of a drawn workload.")] = 512,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Rollouts of each problem.")] = 32,
    hardware: Annotated[str, typer.Option("--hardware", help="mi300x, h100 or h200, each running a 14B.")] = "mi300x",
    memory_fraction: Annotated[
        float,
        typer.Option("--memory-fraction", min=0.05, max=1.0, help="Of the accelerator's memory, the engine's share."),
    ] = 0.5,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="Engine speeds from this JSON file instead of --hardware.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the drawn workloads.")] = 0,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Simulations at a time.")] = 2,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Write a picture: FILE.svg; with several workloads, one file each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Simulate a step of rollouts under several scheduling policies. No GPU is needed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rstar2.rollout.policies import POLICIES
    from rstar2.rollout.simulator import SHAPES, Fleet, generate, replay
    from rstar2.rollout.simulator.compare import compare

    if run is not None and workload:
        raise UserError("--replay and --workload exclude each other; give one of them")
    if run is None and step is not None:
        raise UserError("--step needs --replay")
    model = _engine_model(hardware, memory_fraction, measured)
    names = workload or list(SHAPES)
    workloads = [replay(run, step)] if run is not None else [generate(n, seed, problems, samples) for n in names]
    policies = policy or list(POLICIES)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), disable=as_json) as bars:
        task = bars.add_task("simulating", total=len(workloads) * len(policies))
        comparisons = compare(
            workloads,
            policies,
            Fleet(model, engines),
            keeps_spans=chart is not None,
            num_processes=processes,
            on_done=lambda: bars.advance(task),
        )
    if chart is not None:
        _write_charts(chart, comparisons, model)
    if as_json:
        print_json({"workloads": {comparison.workload: comparison.as_json() for comparison in comparisons}})
    else:
        _print_tables(comparisons, workloads, engines)


def _engine_model(hardware: str, memory_fraction: float, measured: Path | None) -> "EngineModel":
    from rstar2.rollout.simulator import HARDWARE, QWEN3_14B, read_measured, roofline

    if measured is not None:
        return read_measured(measured)
    if hardware not in HARDWARE:
        raise UserError(f"--hardware {hardware}: known are {', '.join(HARDWARE)}; for others give --measured FILE")
    return roofline(HARDWARE[hardware], QWEN3_14B, memory_fraction)


def _write_charts(path: Path, comparisons: "list[Comparison]", model: "EngineModel") -> None:
    from rstar2.rollout.simulator.chart import draw

    for comparison in comparisons:
        name = f"{path.stem}-{comparison.workload}" if len(comparisons) > 1 else path.stem
        file = path.with_name(f"{name}.svg")
        picture = draw(comparison.workload, comparison.results, model.num_cache_tokens, comparison.lower_bound_s)
        try:
            file.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--chart: cannot write {file}: {error.strerror}") from error
        note(f"wrote {file}")


def _print_tables(comparisons: "list[Comparison]", workloads: "list[Workload]", num_engines: int) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    console = Console()
    for comparison, workload in zip(comparisons, workloads, strict=True):
        numbers = [
            Column(name, justify="right") for name in ("makespan", "over bound", "recomputed", "idle", "evicted")
        ]
        table = Table("policy", *numbers, box=None, pad_edge=False)
        for policy, result in comparison.results.items():
            table.add_row(
                policy,
                f"{result.makespan_s:.1f} s",
                f"{result.makespan_s / comparison.lower_bound_s:.2f}x",
                f"{result.recomputed_tokens / result.generated_tokens:.2%}",
                f"{result.idle_share:.1%}",
                f"{result.preemptions:,}",
            )
        console.print(
            f"\n[bold]{comparison.workload}[/]: {len(workload.rollouts):,} rollouts on {num_engines} engines, "
            f"lower bound {comparison.lower_bound_s:.1f} s"
        )
        console.print(table)
