"""A roller whose model is a function and whose sandbox is real, with faults where a test wants them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.agent import AgentLimits, ChatFormat, PythonTool, Tool, ToolSchema
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments import Judgement
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.errors import InfrastructureError
from rstar2.grading import Grader
from rstar2.records import Problem, ToolResult, Trace, Verdict
from rstar2.rollout import make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import answer_judge
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed
from rstar2.sandbox import Executor

CHAT = ChatFormat.of(PlainTextTokenizer(), "")
LIMITS = AgentLimits(max_turns=2, max_response_tokens=600, max_tool_output_tokens=64, max_fault_retries=0)
LOST = "# this call is lost"
PERHAPS = "perhaps"
"""In a model's words: the judge cannot tell."""

Says = Callable[[str, str, int], str]
"""From a rollout's id, its problem's text and the number of its turn to what the model says."""


def answer(value: object) -> str:
    return rf" so</reason><answer>\boxed{{{value}}}</answer>"


def call(code: str) -> str:
    content = json.dumps({"name": PythonTool.schema.name, "arguments": {"code": code, "input": ""}})
    return f" run</reason>\n<tool_call>\n{content}\n</tool_call>"


@dataclass(frozen=True)
class LosingTool:
    """The Python tool, but for programs that are marked as lost."""

    tool: PythonTool
    schema: ToolSchema = PythonTool.schema

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        if LOST in arguments["code"]:
            raise InfrastructureError("the sandbox went away")
        return await self.tool.call(arguments)

    async def close(self) -> None:
        await self.tool.close()


def make_roller(executor: Executor, says: Says) -> Roller:
    def policy(prompt: ScriptedPrompt) -> str:
        question = prompt.text.partition("user\n")[2].partition(CHAT.end_of_turn)[0]
        return says(prompt.session, question, prompt.turn)

    by_answer = answer_judge(Grader(executor))

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        if PERHAPS in trace.response_text:
            return Judgement(Verdict.UNDECIDED, message="it could not tell")
        return await by_answer.decide(problem, trace)

    def make_tools() -> Sequence[Tool]:
        return (LosingTool(PythonTool(executor)),)

    driver: Driver[Trace] = Driver(make_policy("kv-aware"))
    engine = ScriptedEngine(policy, CHAT.tokenizer, CHAT.end_of_turn_id)
    driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), num_cache_tokens=1 << 20)
    return Roller(driver, CHAT, {"": PlainEnvironment(decide, make_tools)}, "scripted")
