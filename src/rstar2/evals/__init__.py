"""Benchmarks: problems rolled out by the report's protocol, judged, and turned into numbers with their uncertainty.

Promise: every trace is kept; rollouts that were lost through our fault or left undecided are counted and never scored;
the same samples give the same numbers, and every deviation from the report's protocol is named beside them.
May import: records, sandbox, engine, grading, agent, environments, rollout, data, config. Works without torch.
"""

from rstar2.evals.bench import Bench, Judges
from rstar2.evals.evaluate import History, evaluate
from rstar2.evals.metrics import BenchmarkResult, measure
from rstar2.evals.plan import Benchmark, EvalPlan, read_plan
from rstar2.evals.sample import Sample
from rstar2.evals.session import grade_again, results_of, run_evaluation, write_results
from rstar2.evals.settings import REPORT, EvalSettings

__all__ = [
    "REPORT",
    "Bench",
    "Benchmark",
    "BenchmarkResult",
    "EvalPlan",
    "EvalSettings",
    "History",
    "Judges",
    "Sample",
    "evaluate",
    "grade_again",
    "measure",
    "read_plan",
    "results_of",
    "run_evaluation",
    "write_results",
]
