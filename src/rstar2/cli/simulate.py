"""`rstar2 simulate`: how long a step of rollouts takes under each scheduling policy, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import note, print_json
from rstar2.cli.progress import counted, waiting
from rstar2.errors import UserError
from rstar2.extensions import POLICIES

if TYPE_CHECKING:
    from rstar2.rollout.simulator import EngineModel, Workload
    from rstar2.rollout.simulator.compare import PolicyComparison


def simulate_command(
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="default, short-tail, heavy-tail or slow-tools; may be repeated. All of them."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help=f"{', '.join(POLICIES)} or package.module:name; may be repeated. By default all that have a name.",
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--replay", help="Replay the traces of this run directory instead of workloads.")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", help="The step to replay; the last one if not given.")] = None,
    engines: Annotated[int, typer.Option("--engines", min=1, help="Number of engines.")] = 64,
    problems: Annotated[int, typer.Option("--problems", min=1, help="Problems of a drawn workload.")] = 512,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Rollouts of each problem.")] = 32,
    roots: Annotated[
        int | None,
        typer.Option(
            "--roots",
            min=1,
            help="Trees: this many rollouts of a problem begin at the prompt. When they have ended, the others "
            "continue one of them from a tool result.",
        ),
    ] = None,
    hardware: Annotated[str, typer.Option("--hardware", help="mi300x, h100 or h200, each running a 14B.")] = "mi300x",
    memory_fraction: Annotated[
        float,
        typer.Option("--memory-fraction", min=0.05, max=1.0, help="The engine's share of the accelerator's memory."),
    ] = 0.5,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="Engine speeds from this JSON file, or fitted to what this run directory recorded; not --hardware.",
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option("--measure", help="First measure the embedded engine on this model, and write --measured FILE."),
    ] = None,
    informed: Annotated[
        bool,
        typer.Option("--informed", help="Also say what a scheduler without foresight could reach at best."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the drawn workloads.")] = 0,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Simulations at a time.")] = 2,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Write a picture: FILE.svg; with several workloads, one file each.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Simulate a step of rollouts under several scheduling policies. No GPU is needed."""
    from rstar2.rollout.simulator import SHAPES, Fleet, as_trees, generate, replay
    from rstar2.rollout.simulator.compare import compare

    if run is not None and workload:
        raise UserError("--replay and --workload exclude each other; give one of them")
    if run is None and step is not None:
        raise UserError("--step needs --replay")
    if run is not None and informed:
        raise UserError("--informed needs workloads whose distribution is known: leave out --replay")
    if roots is not None and (run is not None or informed):
        raise UserError(f"--roots and {'--replay' if run is not None else '--informed'} exclude each other")
    policies = policy or list(POLICIES)
    for name in policies:
        try:
            POLICIES.load(name)
        except UserError as error:
            raise UserError(f"--policy {name}: {error}") from None
    if measure is not None:
        _write_measured(measure, measured)
    model = _engine_model(hardware, memory_fraction, measured, step if measured == run else None)
    names = workload or list(SHAPES)
    with waiting("reading the run" if run is not None else "drawing the workloads"):
        workloads = [replay(run, step)] if run is not None else [generate(n, seed, problems, samples) for n in names]
        if roots is not None:
            workloads = [as_trees(drawn, roots) for drawn in workloads]
    with counted("simulating", len(workloads) * len(policies)) as on_done:
        comparisons = compare(
            workloads,
            policies,
            Fleet(model, engines),
            keeps_spans=chart is not None,
            num_processes=processes,
            on_done=on_done,
        )
    if chart is not None:
        _write_charts(chart, comparisons, model)
    bounds: list[dict[str, float]] = [{}] * len(workloads)
    if informed:
        with waiting("bounding what a scheduler without foresight could reach"):
            bounds = [_informed_bounds(drawn, model, engines) for drawn in workloads]
    if as_json:
        documents = [c.as_json() | _rounded(extra) for c, extra in zip(comparisons, bounds, strict=True)]
        print_json({"workloads": dict(zip((c.workload for c in comparisons), documents, strict=True))})
    else:
        _print_tables(comparisons, workloads, bounds, engines)


def _engine_model(hardware: str, memory_fraction: float, measured: Path | None, step: int | None) -> "EngineModel":
    from rstar2.rollout.simulator import HARDWARE, QWEN3_14B, fit_run, read_measured, roofline

    if measured is not None:
        return fit_run(measured, step) if measured.is_dir() else read_measured(measured)
    if hardware not in HARDWARE:
        raise UserError(f"--hardware {hardware}: known are {', '.join(HARDWARE)}; for others give --measured FILE")
    return roofline(HARDWARE[hardware], QWEN3_14B, memory_fraction)


def _informed_bounds(workload: "Workload", model: "EngineModel", num_engines: int) -> dict[str, float]:
    from rstar2.rollout.simulator import SHAPES, informed_bound_s

    shape = SHAPES[workload.name]
    return {
        f"informed_bound_{name}_s": informed_bound_s(workload, shape, model, num_engines, knows_problems=knows)
        for name, knows in (("problems_known", True), ("problems_unknown", False))
    }


def _rounded(bounds: dict[str, float]) -> dict[str, object]:
    return {name: round(bound_s, 3) for name, bound_s in bounds.items()}


def _write_measured(model: str, path: Path | None) -> None:
    import asyncio

    from rstar2.models import resolve
    from rstar2.rollout.simulator import write_measured

    if path is None or path.is_dir():
        raise UserError("--measure needs --measured FILE: where to write what was measured")
    folder = resolve(model)
    with waiting(f"measuring the embedded engine on {folder}"):
        write_measured(path, asyncio.run(_measure_embedded(folder)))
    note(f"wrote {path}; other work on this machine meanwhile would have made the engine look slow")


async def _measure_embedded(folder: Path) -> "EngineModel":
    """Measure on the device that the engine would choose."""
    from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
    from rstar2.engine.embedded.options import choose_device
    from rstar2.rollout.simulator import MeasurePlan, measure

    is_cuda = choose_device("auto").type == "cuda"
    num_seqs, num_batched_tokens = (256, 16_384) if is_cuda else (32, 256)
    options = EmbeddedOptions(max_running=num_seqs, max_prefill_tokens=num_batched_tokens)
    engine = EmbeddedEngine.from_folder(folder, options)
    config = engine.model.config
    # Long enough to tell what reading the cache costs, short enough for a laptop.
    num_context_tokens = min(config.max_position_embeddings, 1024)
    try:
        return await measure(engine, MeasurePlan(num_seqs, num_batched_tokens, num_context_tokens, config.vocab_size))
    finally:
        await engine.close()


def _write_charts(path: Path, comparisons: "list[PolicyComparison]", model: "EngineModel") -> None:
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


def _print_tables(
    comparisons: "list[PolicyComparison]", workloads: "list[Workload]", bounds: list[dict[str, float]], num_engines: int
) -> None:
    from rich.table import Column, Table

    from rstar2.cli.console import Console

    console = Console()
    for comparison, workload, informed in zip(comparisons, workloads, bounds, strict=True):
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
        for name, bound_s in informed.items():
            knowledge = name.removeprefix("informed_bound_").removesuffix("_s").replace("_", " ")
            over = bound_s / comparison.lower_bound_s
            console.print(f"without foresight, {knowledge}: {bound_s:.1f} s at best, {over:.2f}x the bound")
