"""One problem, many turns: the model writes, its calls are run, the results are appended, until it answers or must end.

Whatever ends a rollout is in its trace, typed. A fault of ours is retried. If it stays, the rollout ends as an
infrastructure fault, which is never shown to the model and never scored.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from rstar2.agent.chat_template import ChatFormat, tool_responses
from rstar2.agent.end_rules import AgentLimits, End, after_calls, after_reply, after_turn
from rstar2.agent.events import Ended, Observer, UserReplied, ignore_event
from rstar2.agent.generate import TurnRequest, generate_turn, sampling_of_turn
from rstar2.agent.incremental import Transcript, with_user_text
from rstar2.agent.parse import ParsedCall, parse_calls
from rstar2.agent.run_calls import run_calls
from rstar2.agent.tool import Tool, by_name
from rstar2.engine.protocol import Engine, Sampling
from rstar2.errors import InfrastructureError
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.records.trace import END_OF_TURN_KEY


class World(Protocol):
    """The interface of a world that the model talks to besides its tools."""

    @property
    def is_over(self) -> bool:
        """Whether a tool call has ended the conversation."""
        ...

    async def reply(self, said: str, /) -> str | None:
        """The user's next message after a turn without a call; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class _SilentWorld:
    """A world in which the user asks one question and never replies."""

    is_over: bool = False

    async def reply(self, _said: str) -> str | None:
        return None


SILENT: World = _SilentWorld()
BeforeTurn = Callable[[Transcript], Awaitable[None]]
"""Called before each turn, with everything before it; at these moments the state of a rollout can be copied."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A model, its way of writing, and the limits of its rollouts; any number of them may run at the same time."""

    engine: Engine
    chat: ChatFormat
    limits: AgentLimits = field(default_factory=AgentLimits)
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are sampled. The stop tokens are always the chat format's."""
    clock: Callable[[], float] = time.monotonic
    waited_s: Callable[[], float] = lambda: 0.0
    """How long the turn that just ended waited in a scheduler's queue, if there is one."""
    reports_text: bool = True
    """Whether observers get the text as it streams, which costs decoding every chunk."""

    async def rollout(
        self,
        problem: Problem,
        tools: Sequence[Tool],
        *,
        trace_id: str | None = None,
        observer: Observer = ignore_event,
        start: Transcript | None = None,
        world: World = SILENT,
        before_turn: BeforeTurn | None = None,
    ) -> Trace:
        """One attempt at one problem. The tools serve this rollout alone; the caller closes them. `start` is the
        problem's `Transcript.start` with these tools, if the caller has it already: siblings share it. If it has turns,
        or the beginning of one, they are continued, and count as this rollout's."""
        session = trace_id or uuid.uuid4().hex
        transcript = start or Transcript.start(self.chat, problem.problem, [tool.schema for tool in tools])
        try:
            transcript, end = await self.converse(
                transcript,
                tools,
                session=session,
                observer=observer,
                world=world,
                num_before=0,
                before_turn=before_turn,
            )
        finally:
            await self.engine.release(session)
        return Trace(
            id=session,
            problem_id=problem.id,
            prompt_ids=transcript.prompt_ids,
            prompt_text=transcript.prompt_text,
            turns=transcript.turns,
            outcome=end.outcome,
            note=end.note,
            metadata={END_OF_TURN_KEY: self.chat.end_of(transcript.turns)},
        )

    async def converse(
        self,
        transcript: Transcript,
        tools: Sequence[Tool],
        *,
        session: str,
        observer: Observer = ignore_event,
        world: World = SILENT,
        num_before: int | None = None,
        before_turn: BeforeTurn | None = None,
    ) -> tuple[Transcript, End]:
        """Runs the assistant's turns from here on, until it has answered or must end. The limits count what follows the
        first `num_before` turns, by default all present turns."""
        table, end = by_name(tools), None
        num_before = len(transcript.turns) if num_before is None else num_before
        while end is None:
            if before_turn is not None:
                await before_turn(transcript)
            transcript, end = await self._advance(transcript, num_before, table, session, observer, world)
        observer(Ended(end.outcome, end.note))
        return transcript, end

    async def _advance(
        self,
        transcript: Transcript,
        num_before: int,
        tools: Mapping[str, Tool],
        session: str,
        observer: Observer,
        world: World,
    ) -> tuple[Transcript, End | None]:
        """Runs one turn, its calls and their results, or the user's reply. The end is None if the model continues."""
        num_turns = len(transcript.turns) - num_before + 1
        num_tokens_left = self.limits.max_response_tokens - transcript.num_tokens_after(num_before)
        turn_number = len(transcript.turns)
        sampling = sampling_of_turn(replace(self.sampling, stop_token_ids=self.chat.stop_token_ids), turn_number)
        request = TurnRequest(turn_number, transcript.token_ids, sampling, num_tokens_left, transcript.begun)
        try:
            turn = await generate_turn(
                partial(self.engine.generate, session),
                self.chat,
                request,
                observer,
                max_retries=self.limits.max_fault_retries,
                clock=self.clock,
                waited_s=self.waited_s,
                reports_text=self.reports_text,
            )
        except InfrastructureError as error:
            return transcript, End(Outcome.INFRASTRUCTURE_FAULT, f"the engine failed: {error}")
        num_tokens_left -= len(turn.token_ids)
        parsed = self._calls_of(turn, tools)
        turn = replace(turn, calls=tuple(item.call for item in parsed))
        end = after_turn(turn.stop_reason, len(parsed), num_turns, num_tokens_left, self.limits)
        if end is not None:
            if end.outcome is Outcome.ANSWERED:
                turn, end = await self._ask(world, turn, end, num_turns, num_tokens_left, observer)
            return transcript.with_turn(turn), end

        started = self.clock()
        results = await run_calls(parsed, tools, self.chat, self.limits, observer)
        turn = replace(turn, results=tuple(results), tool_s=self.clock() - started)
        answered = with_user_text(turn, self.chat, tool_responses([result.text for result in results]))
        end = after_calls(results, len(answered.appended_ids), num_turns, num_tokens_left, self.limits)
        if world.is_over and (end is None or end.outcome is not Outcome.INFRASTRUCTURE_FAULT):
            end = End(Outcome.ANSWERED, "its call ended the episode")
        return transcript.with_turn(answered if end is None else turn), end

    async def _ask(
        self, world: World, turn: Turn, answered: End, num_turns: int, num_tokens_left: int, observer: Observer
    ) -> tuple[Turn, End | None]:
        """Asks the world for the user's reply, and appends it to the turn if there is one and room for it."""
        try:
            reply = await world.reply(turn.text.removesuffix(self.chat.end_of_turn))
        except InfrastructureError as error:
            return turn, End(Outcome.INFRASTRUCTURE_FAULT, str(error))
        if reply is None:
            return turn, answered
        replied = with_user_text(turn, self.chat, reply.strip())
        end = after_reply(len(replied.appended_ids), num_turns, num_tokens_left, self.limits)
        if end is not None:
            return turn, end
        observer(UserReplied(reply.strip()))
        return replied, None

    def _calls_of(self, turn: Turn, tools: Mapping[str, Tool]) -> tuple[ParsedCall, ...]:
        """The calls of the turn. A turn that was cut off has none: an unfinished call is not a malformed one."""
        if turn.stop_reason is not StopReason.END_OF_TURN:
            return ()
        text = turn.text.removesuffix(self.chat.end_of_turn)
        return parse_calls(text, {name: tool.schema for name, tool in tools.items()})
