"""A scripted engine that answers benchmarks from their golds, or always wrongly; and a bench around it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from rstar2.agent import ChatFormat
from rstar2.data import FunctionCallTask, Grading
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments.math import MathEnvironment
from rstar2.evals import Bench, Benchmark, Judges
from rstar2.evals.bfcl.match import IRRELEVANCE, RELEVANCE
from rstar2.evals.retrying_engine import RetryingEngine
from rstar2.records import Problem
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver

SPEED = EngineSpeed(prefill_token_s=1e-6, step_s=1e-4, cached_token_s=1e-9)

Reply = Callable[[Benchmark, Problem], str]


def right_reply(benchmark: Benchmark, problem: Problem) -> str:
    if benchmark.grading is Grading.CALLS:
        return right_calls(FunctionCallTask.of(problem))
    return rf"I know it.</reason><answer>\boxed{{{problem.answer}}}</answer>"


def wrong_reply(benchmark: Benchmark, problem: Problem) -> str:
    if benchmark.grading is Grading.CALLS:
        task = FunctionCallTask.of(problem)
        return _call("no_such_function", {}) if task.category not in RELEVANCE else "I would rather not call anything."
    is_letter = len(problem.answer) == 1 and problem.answer.isalpha()
    wrong = ("B" if problem.answer == "A" else "A") if is_letter else "-123456789"
    return rf"I know it.</reason><answer>\boxed{{{wrong}}}</answer>"


def right_calls(task: FunctionCallTask) -> str:
    if task.category in IRRELEVANCE:
        return "None of these functions helps."
    if task.category in RELEVANCE:
        return _call(task.functions[0]["name"], {})
    calls = []
    for right in task.ground_truth:
        ((name, arguments),) = right.items()
        is_alone = len(task.functions) == 1 and "parallel" not in task.category and "multiple" not in task.category
        called = task.functions[0]["name"] if is_alone else name
        function = next(function for function in task.functions if function["name"] == called)
        required = function["parameters"].get("required", [])
        given = {key: _chosen(values) for key, values in arguments.items() if "" not in values or key in required}
        calls.append(_call(called, given))
    return "\n".join(calls)


def _chosen(values: Sequence[Any]) -> Any:
    """A right value, not the one that means none. The right values of a dictionary's fields are lists, too."""
    value = next((value for value in values if value != ""), "")
    if isinstance(value, dict):
        return _chosen_fields(value)
    if isinstance(value, list):
        return [_chosen_fields(item) if isinstance(item, dict) else item for item in value]
    return value


def _chosen_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: values[0] for key, values in fields.items() if values[0] != ""}


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def scripted_bench(
    benchmarks: Sequence[Benchmark], reply: Reply, judges: Judges, pauses_s: Sequence[float] = ()
) -> tuple[Bench, list[str]]:
    """The bench, and a list that grows by the session of each turn that is asked for. A reply that raises an
    InfrastructureError is asked for again after each of the pauses."""
    chat = ChatFormat.of(PlainTextTokenizer())
    problems = {
        f"eval/0/{benchmark.name}/{problem.id}": (benchmark, problem)
        for benchmark in benchmarks
        for problem in benchmark.problems
    }
    asked: list[str] = []

    def policy(prompt: ScriptedPrompt) -> str:
        asked.append(prompt.session)
        group = prompt.session.partition("/retry-")[0].rpartition("/")[0]
        return reply(*problems[group])

    driver: Driver[Any] = Driver(make_policy("kv-aware"))
    engine = RetryingEngine(ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id), pauses_s)
    driver.add_engine("scripted", engine, SPEED, 1 << 30)

    math = MathEnvironment(judges.grader, judges.answer_place)
    return Bench(driver, chat, {"": math}, math, judges, "gold"), asked
