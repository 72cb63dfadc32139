"""An evaluation in a run directory: every trace is kept, a resumed run repeats no sample, and traces can be regraded.

Invariant: the traces in the directory are the evaluation. Results are always computed from stored samples, and a trace
is stored before it is counted.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice

from rstar2.errors import InfrastructureError, UserError
from rstar2.evals.bench import Bench, Judges
from rstar2.evals.evaluate import History, evaluate
from rstar2.evals.metrics import BenchmarkResult
from rstar2.evals.plan import Benchmark, EvalPlan
from rstar2.evals.retrying_engine import EngineUnavailableError
from rstar2.evals.sample import BENCHMARK_KEY, Sample
from rstar2.evals.tables import left_out
from rstar2.evals.votes import graders_equality
from rstar2.records import RunDirectory, RunView, Trace
from rstar2.rollout.judge import judged

STEP = 0
"""The step of all traces: an evaluation is one step."""
STAGE = "eval"
NUM_AT_ONCE = 64


async def run_evaluation(
    plan: EvalPlan,
    benchmarks: Sequence[Benchmark],
    bench: Bench,
    run: RunDirectory,
    on_trace: Callable[[Trace], None] = lambda _trace: None,
) -> dict[str, BenchmarkResult]:
    """Runs the evaluation of `run` to its end, from the start or from where it was interrupted."""
    for benchmark in benchmarks:
        bench.judges.check(benchmark)
    view = RunView(run.path)
    history = (await grade_again(view, benchmarks, bench.judges, only_undecided=True)).history

    def keep(trace: Trace) -> None:
        run.write_trace(trace)
        on_trace(trace)

    results: dict[str, BenchmarkResult] = {}
    for benchmark in benchmarks:
        try:
            results |= await evaluate(
                bench.roller(benchmark.grading),
                {benchmark.name: benchmark.problems},
                plan.settings,
                step=STEP,
                stage=STAGE,
                seed=plan.seed,
                on_trace=keep,
                history=history,
                same=graders_equality(bench.judges.grader),
            )
        except EngineUnavailableError as error:
            raise InfrastructureError(f"{error}; resume {run.path} when the engine is back") from error
        if results[benchmark.name].num_undecided:
            again = await grade_again(view, [benchmark], bench.judges, only_undecided=True)
            measured = (await results_of(again.history, [benchmark], plan, bench.judges))[benchmark.name]
            results[benchmark.name] = replace(measured, seconds=results[benchmark.name].seconds)
        write_results(run, {benchmark.name: results[benchmark.name]})
    return results


@dataclass(frozen=True, slots=True)
class Regraded:
    history: History
    num_graded: int
    num_changed: int
    """Samples whose score differs from the one in their trace."""


async def grade_again(
    view: RunView,
    benchmarks: Sequence[Benchmark],
    judges: Judges,
    *,
    only_undecided: bool,
    on_graded: Callable[[], None] = lambda: None,
) -> Regraded:
    """Regrade the stored traces of these benchmarks: all, or only the undecided ones. The traces do not change."""
    judge_of = {benchmark.name: judges.of(benchmark.grading) for benchmark in benchmarks}
    problem_of = {(benchmark.name, problem.id): problem for benchmark in benchmarks for problem in benchmark.problems}
    history, num_graded, num_changed = History(), 0, 0

    async def grade(trace: Trace) -> Trace:
        if only_undecided and not Sample.of(trace).is_undecided:
            return trace
        name = trace.metadata[BENCHMARK_KEY]
        judge = judge_of[name]
        if judge is None:  # only its episode could judge it, and that is over
            return trace
        problem = problem_of.get((name, trace.problem_id))
        if problem is None:
            raise UserError(f"{view.path}: {name} has no problem {trace.problem_id} any more; its data have changed")
        graded = await judged(judge, problem, trace)
        on_graded()
        return graded

    stored = (trace for trace in _stored(view) if trace.metadata.get(BENCHMARK_KEY) in judge_of)
    while batch := list(islice(stored, NUM_AT_ONCE)):
        for old, new in zip(batch, await asyncio.gather(*map(grade, batch)), strict=True):
            num_graded += new is not old
            num_changed += new.reward != old.reward
            history.add(new)
    return Regraded(history, num_graded, num_changed)


async def results_of(
    history: History, benchmarks: Iterable[Benchmark], plan: EvalPlan, judges: Judges
) -> dict[str, BenchmarkResult]:
    same = graders_equality(judges.grader)
    return {
        benchmark.name: await history.measure(benchmark.name, benchmark.problems, plan.settings.num_samples, same)
        for benchmark in benchmarks
    }


def write_results(run: RunDirectory, results: dict[str, BenchmarkResult]) -> None:
    """Write the numbers to the metrics, and the complete results as an event."""
    for name, result in results.items():
        numbers = {f"{name}/{key}": value for key, value in asdict(result).items() if isinstance(value, (int, float))}
        run.write_metrics(STEP, STAGE, numbers)
        sentence = f"{name}: {100 * result.accuracy:.1f}% of {result.num_scored:,} samples{left_out(result)}"
        run.write_event("result", sentence, {"benchmark": name, **result_as_json(result)})


def result_as_json(result: BenchmarkResult) -> dict[str, object]:
    return {**asdict(result), "pass_at": {str(k): value for k, value in result.pass_at.items()}}


def stored_history(view: RunView) -> History:
    """The stored samples of the run, as they were graded."""
    history = History()
    for trace in _stored(view):
        history.add(trace)
    return history


def num_stored(view: RunView) -> int:
    return sum(1 for _ in _stored(view))


def _stored(view: RunView) -> Iterable[Trace]:
    return view.traces(STEP) if STEP in view.trace_steps() else ()
