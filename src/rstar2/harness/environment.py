"""The environment `harness`: an external program plays the episodes, and the user's reward function scores them."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rstar2.agent import Agent, Tool
from rstar2.environments.messages import opening_messages, prompt_of, row_of
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.source import EnvironmentSource
from rstar2.environments.user_code import Caller, load_object
from rstar2.errors import EnvironmentCodeError, UserError
from rstar2.harness.door import Address, Door
from rstar2.harness.programs import Program, ProgramFailed, load_program
from rstar2.harness.recording import Recording
from rstar2.harness.settings import HarnessSettings
from rstar2.harness.trace import trace_of
from rstar2.records import Outcome, Problem, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

CANCEL_S = 5.0
"""Seconds that a program gets to exit when its episode is over."""
REQUEST_S = 3600.0
"""Seconds for one request, including its wait for an engine."""


@dataclass(frozen=True, slots=True)
class HarnessEpisode:
    """Satisfies `Episode` and `PlaysItself`. The program has its own tools."""

    problem: Problem
    environment: "HarnessEnvironment"
    tools: Sequence[Tool] = ()
    is_over: bool = False

    @property
    def observation(self) -> str:
        raise UserError("a harness asks the model itself: use it with rstar2 train, rstar2 eval or rstar2 env validate")

    async def reply(self, _said: str) -> str | None:
        raise AssertionError("the program talks to the model itself")

    async def play(self, agent: Agent, trace_id: str) -> Trace:
        """Run the program once, with the agent's engine, sampling and limits."""
        return await self.environment.play(self.problem, agent, trace_id)

    async def score(self, _trace: Trace) -> Judgement:
        raise AssertionError("environment.reward scores it")

    async def close(self) -> None:
        """The program has ended with its run."""


@dataclass(frozen=True, slots=True)
class HarnessEnvironment:
    """Satisfies `Environment`."""

    program: Program
    settings: HarnessSettings
    caller: Caller
    door: Door
    gate: asyncio.Semaphore
    max_prompt_tokens: int
    scores_truncated: bool = False

    def opening(self, problem: Problem) -> Opening:
        """The row's question. The scheduler estimates lengths from it; the program may ask it in other words."""
        return Opening(opening_messages(problem, prompt_of(row_of(problem))))

    async def begin(self, problem: Problem) -> HarnessEpisode:
        return HarnessEpisode(problem, self)

    def solution(self, _problem: Problem) -> Sequence[str] | None:
        return None

    async def play(self, problem: Problem, agent: Agent, trace_id: str) -> Trace:
        async with self.gate:
            await self.door.open(agent.chat)
            recording = Recording(trace_id, agent, self.max_prompt_tokens + agent.limits.max_response_tokens)
            async with self.door.lent(recording) as address:
                answer, failure = await self._run(problem, address, recording)
        outcome, note = self._ending(recording, failure)
        return trace_of(recording.calls, agent.chat, problem, trace_id, outcome, note, answer)

    async def _run(self, problem: Problem, address: Address, recording: Recording) -> tuple[str, str]:
        """Run the program; returns its result and its failure, one of them empty."""
        task = asyncio.ensure_future(self.program(row_of(problem), address))
        try:
            while not task.done() and recording.quiet_s < self.caller.deadline_s:
                await asyncio.wait({task}, timeout=self.caller.deadline_s - recording.quiet_s)
            if not task.done():
                return "", f"the program asked nothing for {self.caller.deadline_s:g} s, and did not end"
            return task.result(), ""
        except ProgramFailed as error:
            return "", str(error)
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)

    def _ending(self, recording: Recording, failure: str) -> tuple[Outcome, str]:
        """The outcome of an episode. UserError if a program's failure stops the run."""
        if recording.fault:
            return Outcome.INFRASTRUCTURE_FAULT, recording.fault
        if failure and recording.limit is not None:
            outcome, reason = recording.limit
            return outcome, f"{reason}; {failure}"
        if failure and self.settings.on_failure == "fault":
            fault = self.caller.fault(f"the program failed: {failure}")
            if not isinstance(fault, EnvironmentCodeError):
                raise fault
            return Outcome.INFRASTRUCTURE_FAULT, str(fault)
        if not recording.calls:
            reason = "the program asked the model nothing"
            return Outcome.INFRASTRUCTURE_FAULT, f"{reason}: {failure}" if failure else reason
        return Outcome.ANSWERED, failure


@asynccontextmanager
async def open_harness(section: "EnvironmentSection", services: Services) -> AsyncIterator[HarnessEnvironment]:
    settings = HarnessSettings.of(section)
    if section.reward is None:
        raise UserError("environment.reward: name the function (row, trace) that scores what the program did")
    if section.tools or section.mcp:
        raise UserError("environment.tools: the tools of a harness are its own; leave out tools and mcp")
    door = Door(services.recipe.model.name, REQUEST_S)
    try:
        yield HarnessEnvironment(
            load_program(settings),
            settings,
            Caller.of(section),
            door,
            asyncio.Semaphore(settings.max_at_once),
            services.recipe.rollout.max_prompt_tokens,
        )
    finally:
        await door.close()


def harness_rows(section: "EnvironmentSection") -> Iterable[Mapping[str, Any]]:
    settings = HarnessSettings.of(section)
    if settings.rows is None:
        raise UserError("environment.settings.rows: name a function that yields tasks, or name a data set")
    function = load_object(settings.rows, "environment.settings.rows")
    caller = Caller(section.deadline_s, stops=True)
    rows: list[Mapping[str, Any]] = caller.call_now("the rows of the harness", lambda: list(function()))
    return rows


HARNESS = EnvironmentSource(open_harness, rows=harness_rows, opens_at_once=True)
