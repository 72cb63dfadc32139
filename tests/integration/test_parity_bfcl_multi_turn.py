"""BFCL's conversations against bfcl-eval: scripted models, played by our roller with the package's services in the
sandbox, get the verdicts of the package's own runner."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gold_engine import SPEED

from golden_file import read_golden
from rstar2.agent import ChatFormat
from rstar2.data import Grading, MultiTurnCallTask
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments.math import MathEnvironment
from rstar2.evals import Bench, Benchmark, EvalPlan, EvalSettings, Judges, grade_again, run_evaluation
from rstar2.evals.bfcl.services import CallServices, source_of
from rstar2.grading import Grader
from rstar2.records import Outcome, Problem, RunDirectory, RunView, ToolCall, ToolStatus
from rstar2.rollout import make_policy
from rstar2.rollout.driver import Driver
from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.local import LocalConfig
from rstar2.sandbox.slots.slot_factory import SlotConfig

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed"),
]

GOLDEN = read_golden("bfcl_multi_turn")
EVERY = 6
"""All 576 conversations take minutes: every sixth problem is played."""


def problem_of(row: dict[str, Any], name: str) -> Problem:
    task = MultiTurnCallTask(
        row["id"].removeprefix("bfcl3-"),
        tuple(f"Request {turn}." for turn in range(row["num_turns"])),
        tuple(row["involved_classes"]),
        row["initial_config"],
        {int(turn): tuple(names) for turn, names in (row["missed_function"] or {}).items()},
        tuple(map(tuple, row["ground_truth"])),
    )
    return Problem(name, "Requests.", "", metadata=task.metadata)


@pytest.fixture
async def executor() -> AsyncIterator[LocalExecutor]:
    made = LocalExecutor(LocalConfig(SlotConfig(packages=("bfcl-eval",))))
    yield made
    await made.close()


def bench_of(scripts: dict[str, list[str]], executor: LocalExecutor) -> Bench:
    chat = ChatFormat.of(PlainTextTokenizer())

    def policy(prompt: ScriptedPrompt) -> str:
        texts = scripts[prompt.session.partition("/retry-")[0].split("/")[-2]]
        return texts[prompt.turn] if prompt.turn < len(texts) else "Done."

    driver: Driver[Any] = Driver(make_policy("kv-aware"))
    driver.add_engine("scripted", ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id), SPEED, 1 << 30)
    judges = Judges(Grader(executor))
    return Bench(driver, chat, {}, MathEnvironment(judges.grader), judges, "scripted")


async def test_every_conversation_has_the_official_verdict(executor: LocalExecutor, tmp_path: Path) -> None:
    chosen = [(index, row) for index, row in enumerate(GOLDEN["responses"]) if row[0] % EVERY == 0]
    problems = tuple(problem_of(GOLDEN["tasks"][task], f"c{index}") for index, (task, _, _) in chosen)
    scripts = {f"c{index}": texts for index, (_, _, texts) in chosen}
    official = {f"c{index}": float(is_right) for index, (_, is_right, _) in chosen}
    plan = EvalPlan(("bfcl_multi_turn",), EvalSettings(num_samples=1, max_response_tokens=10_000_000))
    benchmark = Benchmark("bfcl_multi_turn", problems, Grading.MULTI_TURN_CALLS)
    bench = bench_of(scripts, executor)
    with RunDirectory.create(tmp_path / "run", verb="eval", recipe_toml=plan.to_toml({})) as run:
        results = await run_evaluation(plan, [benchmark], bench, run)

    traces = {trace.problem_id: trace for trace in RunView(run.path).traces(0)}
    assert {name: trace.reward for name, trace in traces.items()} == official
    assert results["bfcl_multi_turn"].is_complete
    assert 0 < sum(official.values()) < len(official)
    assert any(trace.outcome is Outcome.TURN_LIMIT for trace in traces.values()), "one of them never ends"
    assert len(results["bfcl_multi_turn"].details) == 4

    again = await grade_again(RunView(run.path), [benchmark], bench.judges, only_undecided=False)
    assert (again.num_graded, again.num_changed) == (len(chosen), 0)


async def test_services_run_only_what_they_have(executor: LocalExecutor) -> None:
    row = next(row for row in GOLDEN["tasks"] if "GorillaFileSystem" in row["involved_classes"])
    services = CallServices(executor, MultiTurnCallTask.of(problem_of(row, "p")))
    calls = [
        ToolCall("", "pwd"),
        ToolCall("", "__import__('os').getcwd"),
        ToolCall("", "mkdir", {"dir_name=1) or print(": "x"}),
        ToolCall("", "mkdir", {"dir_name": "new'); print('"}),
    ]
    results = await services.run(calls)
    assert [result.status for result in results] == [
        ToolStatus.OK,
        ToolStatus.UNKNOWN_TOOL,
        ToolStatus.UNKNOWN_TOOL,
        ToolStatus.OK,
    ]
    assert "is not defined" in results[1].text
    assert source_of("pwd", {"class": 1}, frozenset({"pwd"})) is None
