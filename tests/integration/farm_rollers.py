"""What a worker of a farm rolls out with in tests: a scripted model's agents with notebooks, under every policy."""

import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager

from rollout_leftovers import left_in_driver, left_in_sandbox
from sandbox_service import cold
from train_rollouts import CHAT, answer

from rstar2.agent import AgentLimits, JupyterTool
from rstar2.engine import Engine, Sampling
from rstar2.engine.scripted import ScriptedPrompt
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.errors import InfrastructureError
from rstar2.grading import Grader
from rstar2.records import Problem, StepRecord, Trace
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import answer_judge
from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.request import OnTrace, RolloutRequest
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed
from rstar2.sandbox import LocalExecutor

LIMITS = AgentLimits(max_turns=3, max_response_tokens=2000, max_tool_output_tokens=64, max_fault_retries=1)
NUM_PLACES = 3
"""In a worker's share of the cache; there are more rollouts, so some wait."""


def cell(code: str) -> str:
    content = json.dumps({"name": JupyterTool.schema.name, "arguments": {"code": code}})
    return f" run</reason>\n<tool_call>\n{content}\n</tool_call>"


REPLIES = {
    "answers": (answer(42),),
    "talks": ("so " * 400 + answer(42),),
    "calls": (cell("x = 6 * 7"), cell("print(x)"), answer(42)),
    "sleeps": (cell("import time; time.sleep(1000)"),),
}


def reply(prompt: ScriptedPrompt) -> str:
    return REPLIES[prompt.text.partition("user\n")[2].partition(CHAT.end_of_turn)[0]][prompt.turn]


@asynccontextmanager
async def open_rollers(joining: Awaitable[Engine]) -> AsyncIterator["Rollers"]:
    async with cold(num_young=4) as executor:
        rollers = Rollers(executor)
        await rollers.join(await joining)
        yield rollers


class Rollers:
    """Satisfies `RollsInSteps`: a roller of each policy, named by a request's stage. The end of a step is an error if
    anything is left of rollouts here."""

    is_here = True

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor
        self._rollers: dict[str, Roller] = {}

    async def join(self, engine: Engine) -> None:
        executor = self._executor
        for policy in POLICIES:
            driver: Driver[Trace] = Driver(make_policy(policy), report_period_s=0.01)
            notebook = PlainEnvironment(answer_judge(Grader(executor)).decide, lambda: (JupyterTool(executor),))
            roller = Roller(driver, CHAT, {"": notebook})
            prompt = max(await roller.num_prompt_tokens([Problem(kind, kind, "42") for kind in REPLIES]))
            room = NUM_PLACES * (prompt + LIMITS.max_response_tokens)
            driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), room)
            self._rollers[policy] = roller

    async def num_prompt_tokens(self, problems: Sequence[Problem]) -> list[int]:
        return await self._rollers["kv-aware"].num_prompt_tokens(problems)

    def remember(self, traces: Mapping[str, Trace]) -> None:
        pass

    def begin_step(self, step: int) -> None:
        for roller in self._rollers.values():
            roller.begin_step(step)

    async def end_step(self) -> StepRecord:
        left = [f"{policy}: {name}" for policy, r in self._rollers.items() for name in left_in_driver(r.driver)]
        left += await left_in_sandbox(self._executor)
        if left:
            raise InfrastructureError(f"rollouts have left {left}")
        return await self._rollers["kv-aware"].end_step()

    async def run(
        self, requests: Sequence[RolloutRequest], limits: AgentLimits, sampling: Sampling, on_trace: OnTrace
    ) -> list[Trace]:
        return await self._rollers[requests[0].stage].run(requests, limits, sampling, on_trace)
