"""How an evaluation is shown: a bar while it runs, tables when it has ended."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.evals import Benchmark, BenchmarkResult, EvalPlan
    from rstar2.records import Trace


@contextmanager
def sample_bars(
    benchmarks: Sequence["Benchmark"], plan: "EvalPlan", done: Mapping[str, int]
) -> Iterator[Callable[["Trace"], None]]:
    """A bar for each benchmark, and the share that is right so far; `done` are samples from before."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from rstar2.cli.console import Console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    scores: dict[str, list[float]] = {benchmark.name: [] for benchmark in benchmarks}
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {
            benchmark.name: bars.add_task(
                benchmark.name,
                total=len(benchmark.problems) * plan.settings.num_samples,
                completed=done.get(benchmark.name, 0),
                score="",
            )
            for benchmark in benchmarks
        }

        def show(trace: "Trace") -> None:
            name = trace.metadata["benchmark"]
            if trace.reward is not None:
                scores[name].append(trace.reward)
            mean = f"{100 * sum(scores[name]) / len(scores[name]):.1f}%" if scores[name] else ""
            bars.update(tasks[name], advance=trace.outcome != "infrastructure_fault", score=mean)

        yield show


@contextmanager
def grading_bar(num_traces: int) -> Iterator[Callable[[], None]]:
    from rich.progress import Progress

    from rstar2.cli.console import Console

    with Progress(console=Console(stderr=True)) as bars:
        task = bars.add_task("grading again", total=num_traces)
        yield lambda: bars.advance(task)


def print_results(results: Mapping[str, "BenchmarkResult"], model: str, deviations: Sequence[str]) -> None:
    from rich.markup import escape

    from rstar2.cli.console import Console
    from rstar2.cli.tables import print_table
    from rstar2.evals.tables import all_tables, remarks

    console = Console()
    for table in all_tables(results, model):
        print_table(console, table.columns, table.rows, title=table.title)
        console.print()
    for remark in remarks(results, deviations):
        console.print(escape(remark))
