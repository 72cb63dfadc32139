"""Whole evaluations by an engine that knows the golds: 100% and 0%, resumed, regraded, with faults on the way."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gold_engine import Reply, right_reply, scripted_bench, wrong_reply

from rstar2.errors import InfrastructureError, UserError
from rstar2.evals import Benchmark, EvalPlan, EvalSettings, Judges, grade_again, read_plan, results_of, run_evaluation
from rstar2.evals.arena import ChatClient
from rstar2.evals.ifeval import instruction_judge
from rstar2.grading import Grader
from rstar2.records import Problem, RunDirectory, RunStatus, RunView, Trace
from rstar2.sandbox import LocalExecutor

pytestmark = pytest.mark.integration

BOOK = {
    "name": "book",
    "parameters": {"type": "dict", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ASK = [[{"role": "user", "content": "Book Rome."}]]
ROWS: dict[str, list[dict[str, Any]]] = {
    "aime24": [{"id": f"a{n}", "problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(3)],
    "math500": [
        {"id": "m1", "problem": "Half?", "answer": r"\frac{1}{2}"},
        {"id": "m2", "problem": "Interval?", "answer": r"[0, \infty)"},
        {"id": "m3", "problem": "Roots?", "answer": r"1 \pm \sqrt{2}"},
    ],
    "gpqa_diamond": [{"id": "g1", "question": "Which?\n\nA) x\nB) y", "answer": "B"}],
    "bfcl_v3": [
        {"id": "simple_0", "question": ASK, "function": [BOOK], "ground_truth": [{"book": {"city": ["Rome"]}}]},
        {"id": "simple_1", "question": ASK, "function": [BOOK], "ground_truth": [{"book": {"town": ["Rome"]}}]},
        {
            "id": "parallel_0",
            "question": ASK,
            "function": [BOOK],
            "ground_truth": [{"book": {"city": ["Rome"]}}, {"book": {"city": ["Oslo"]}}],
        },
        {"id": "irrelevance_0", "question": ASK, "function": [BOOK]},
        {"id": "live_relevance_0-0-0", "question": ASK, "function": [BOOK]},
    ],
    "ifeval": [
        {"key": 1, "prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
        {
            "key": 2,
            "prompt": "Say yes.",
            "instruction_id_list": ["detectable_format:constrained_response", "startend:quotation"],
            "kwargs": [{}, {}],
        },
    ],
    "arena_hard": [{"id": "h1", "prompt": "Why is the sky blue?"}],
}
ANSWER_SETS = ("aime24", "math500", "gpqa_diamond", "procedural:gcd,lcm")


def can_check_instructions() -> bool:
    try:
        instruction_judge()
    except UserError:
        return False
    return True


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
async def judges() -> AsyncIterator[Judges]:
    executor = LocalExecutor()
    yield Judges(Grader(executor))
    await executor.close()


def plan_for(data_dir: Path, *names: str, num_samples: int = 2) -> EvalPlan:
    return EvalPlan(names, EvalSettings(num_samples=num_samples), num_generated=4, data_dir=str(data_dir))


def new_run(tmp_path: Path, plan: EvalPlan, name: str = "run") -> RunDirectory:
    return RunDirectory.create(tmp_path / name, verb="eval", recipe_toml=plan.to_toml({}))


@pytest.mark.parametrize(("reply", "accuracy"), [(right_reply, 1.0), (wrong_reply, 0.0)])
async def test_golds_score_everything_and_wrong_answers_nothing(
    reply: Reply, accuracy: float, data_dir: Path, tmp_path: Path, judges: Judges
) -> None:
    plan = plan_for(data_dir, *ANSWER_SETS, "bfcl")
    benchmarks = plan.load()
    bench, _ = scripted_bench(benchmarks, reply, judges)
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)

    assert {name: result.accuracy for name, result in results.items()} == dict.fromkeys(plan.benchmarks, accuracy)
    assert all(result.is_complete for result in results.values())
    assert results["aime24"].majority_at_k == accuracy
    assert results["bfcl"].majority_at_k is None
    assert results["bfcl"].num_problems == 4
    assert plan.deviations(benchmarks)[-1] == "1 problems of bfcl left out, whose gold cannot be met"
    num_traces = sum(1 for _ in RunView(run.path).traces(0))
    assert num_traces == 2 * sum(len(benchmark.problems) for benchmark in benchmarks)


@pytest.mark.skipif(not can_check_instructions(), reason="langdetect, nltk or its punkt_tab is not installed")
@pytest.mark.parametrize(
    ("said", "accuracy", "instruction_strict"),
    [('"My answer is yes."', 1.0, 1.0), ("My answer is, yes.", 0.0, 0.0), ("My answer is yes.", 0.5, 2 / 3)],
)
async def test_ifeval_checks_the_whole_response(
    said: str, accuracy: float, instruction_strict: float, data_dir: Path, tmp_path: Path, judges: Judges
) -> None:
    plan = plan_for(data_dir, "ifeval")
    benchmarks = plan.load()
    bench, _ = scripted_bench(benchmarks, lambda *_: f"Hm, well.</reason>{said}", judges)
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)

    assert results["ifeval"].accuracy == accuracy
    assert results["ifeval"].details["instruction_strict"] == instruction_strict


async def test_arena_hard_asks_a_judge_of_the_users(data_dir: Path, tmp_path: Path, judges: Judges) -> None:
    bodies = []

    async def complete(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if len(bodies) == 1:
            return web.Response(status=503)
        is_first = "Rayleigh" in bodies[-1]["messages"][-1]["content"].partition("Assistant B")[0]
        label = "[[A>B]]" if is_first else "[[B>A]]"
        return web.json_response({"choices": [{"message": {"content": label}}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    plan = plan_for(data_dir, "arena_hard", num_samples=1)
    benchmarks = plan.load()
    chat = ChatClient(f"http://127.0.0.1:{port}/v1", "judge", "secret")
    bench, _ = scripted_bench(benchmarks, lambda *_: "Rayleigh.", replace(judges, arena=chat, baseline={"h1": "Dust."}))
    try:
        with new_run(tmp_path, plan) as run:
            results = await run_evaluation(plan, benchmarks, bench, run)
    finally:
        await runner.cleanup()

    assert (results["arena_hard"].accuracy, results["arena_hard"].num_undecided) == (1.0, 0)
    assert bodies[-1]["model"] == "judge"


async def test_a_response_that_is_cut_off_scores_nothing_in_any_category(
    data_dir: Path, tmp_path: Path, judges: Judges
) -> None:
    plan = replace(plan_for(data_dir, "bfcl"), settings=EvalSettings(num_samples=1, max_response_tokens=4))
    benchmarks = plan.load()
    bench, _ = scripted_bench(benchmarks, right_reply, judges)
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)

    assert (results["bfcl"].accuracy, results["bfcl"].truncated_share) == (0.0, 1.0)
    assert set(results["bfcl"].details.values()) == {0.0}
    assert len(results["bfcl"].details) == 4


async def test_an_interrupted_evaluation_resumes_without_repeating_a_sample(
    data_dir: Path, tmp_path: Path, judges: Judges
) -> None:
    plan = plan_for(data_dir, "aime24", "bfcl", num_samples=3)
    benchmarks = plan.load()
    bench, _ = scripted_bench(benchmarks, right_reply, judges)
    kept: list[str] = []

    def stop_early(trace: Trace) -> None:
        kept.append(trace.id)
        if len(kept) == 5:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError), new_run(tmp_path, plan) as run:
        await run_evaluation(plan, benchmarks, bench, run, stop_early)
    assert RunView(run.path).status is RunStatus.INTERRUPTED
    stored = [trace.id for trace in RunView(run.path).traces(0)]

    bench, asked = scripted_bench(benchmarks, right_reply, judges)
    with RunDirectory.resume(run.path, verb="eval") as again:
        results = await run_evaluation(plan, benchmarks, bench, again)

    assert 0 < len(stored) < 21
    assert not set(stored) & set(asked)
    assert len(stored) + len(asked) == 21
    assert sorted(trace.id for trace in RunView(run.path).traces(0)) == sorted(stored + asked)
    assert [result.num_scored for result in results.values()] == [9, 12]


async def test_a_run_can_be_graded_again_without_generating(data_dir: Path, tmp_path: Path, judges: Judges) -> None:
    plan = plan_for(data_dir, "aime24", "bfcl")
    benchmarks = plan.load()
    bench, _ = scripted_bench(benchmarks, right_reply, judges)
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)

    view = RunView(run.path)
    assert read_plan(view.recipe_toml)[0] == plan
    same = await grade_again(view, benchmarks, judges, only_undecided=False)
    assert (same.num_graded, same.num_changed) == (14, 0)
    again = await results_of(same.history, benchmarks, plan, judges)
    assert again == {name: replace(result, seconds=0.0) for name, result in results.items()}

    corrected = tuple(replace(problem, answer="-1") for problem in benchmarks[0].problems)
    other = await grade_again(view, [replace(benchmarks[0], problems=corrected)], judges, only_undecided=False)
    assert (other.num_graded, other.num_changed) == (6, 6)


class MoodyGrader(Grader):
    """Fails through our fault until it is told to work."""

    is_well = False

    async def grade(self, *turns: str, **arguments: Any) -> Any:
        if not MoodyGrader.is_well:
            raise InfrastructureError("the grader is away")
        return await super().grade(*turns, **arguments)


async def test_what_could_not_be_judged_is_counted_and_judged_on_resume(
    data_dir: Path, tmp_path: Path, judges: Judges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.rollout.judge.FIRST_PAUSE_S", 0.0)
    moody = replace(judges, grader=MoodyGrader(judges.grader.executor))
    plan = plan_for(data_dir, "aime24", num_samples=1)
    benchmarks = plan.load()
    bench, asked = scripted_bench(benchmarks, right_reply, moody)
    MoodyGrader.is_well = False
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)
    assert (results["aime24"].num_undecided, results["aime24"].num_scored) == (3, 0)

    MoodyGrader.is_well = True
    asked.clear()
    with RunDirectory.resume(run.path, verb="eval") as again:
        results = await run_evaluation(plan, benchmarks, bench, again)
    assert asked == [], "an answer that is there is judged again, not asked for again"
    assert (results["aime24"].num_undecided, results["aime24"].accuracy) == (0, 1.0)


async def test_an_engine_that_fails_now_and_then_costs_nothing(data_dir: Path, tmp_path: Path, judges: Judges) -> None:
    plan = plan_for(data_dir, "aime24", "bfcl", num_samples=1)
    benchmarks = plan.load()
    failed: set[str] = set()

    def fail_first(benchmark: Benchmark, problem: Problem) -> str:
        if problem.id not in failed:
            failed.add(problem.id)
            raise InfrastructureError("busy")
        return right_reply(benchmark, problem)

    bench, _ = scripted_bench(benchmarks, fail_first, judges, pauses_s=(0.0,))
    with new_run(tmp_path, plan) as run:
        results = await run_evaluation(plan, benchmarks, bench, run)

    assert [result.accuracy for result in results.values()] == [1.0, 1.0]
    assert all(result.is_complete for result in results.values())


async def test_an_engine_that_is_gone_ends_the_evaluation_and_a_later_one_finishes_it(
    data_dir: Path, tmp_path: Path, judges: Judges
) -> None:
    plan = plan_for(data_dir, "aime24", "bfcl", num_samples=1)
    benchmarks = plan.load()

    def die_at_bfcl(benchmark: Benchmark, problem: Problem) -> str:
        if benchmark.name == "bfcl":
            raise InfrastructureError("no route to host")
        return right_reply(benchmark, problem)

    bench, _ = scripted_bench(benchmarks, die_at_bfcl, judges, pauses_s=(0.0, 0.0))
    with pytest.raises(InfrastructureError, match="no route to host; resume"), new_run(tmp_path, plan) as run:
        await run_evaluation(plan, benchmarks, bench, run)
    assert RunView(run.path).status is RunStatus.FAILED

    bench, asked = scripted_bench(benchmarks, right_reply, judges)
    with RunDirectory.resume(run.path, verb="eval") as again:
        results = await run_evaluation(plan, benchmarks, bench, again)
    assert len(asked) == 4, "the three of aime24 are there"
    assert [result.accuracy for result in results.values()] == [1.0, 1.0]
