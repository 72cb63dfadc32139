"""Runs an agent's episode for one choice of a request, on the server's own engine.

Invariant: every token is counted and can be cancelled, as in any other request. A fault on our side, in whichever code,
is raised as a server error; it never becomes an answer.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from rstar2.agent import Agent, AgentLimits, Observer
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.engine.protocol import Message
from rstar2.environments import Environment, Episode, Opening
from rstar2.environments.begin import observed_start
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Outcome, Problem, Trace
from rstar2.serve.errors import OpenAIError
from rstar2.serve.generation import FINISH_REASONS, Ask
from rstar2.serve.service import ModelService, Usage

logger = logging.getLogger(__name__)
_STOP_REASONS = {reason: stop for stop, reason in FINISH_REASONS.items()}


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """The agent that answers chat requests with the server's model."""

    environment: Environment
    limits: AgentLimits = field(default_factory=AgentLimits)
    sampling: Sampling = field(default_factory=Sampling)
    """The sampling parameters that a request does not set."""
    sandbox_status: Callable[[], Mapping[str, Any]] = dict
    """Returns the status of a sandbox on this machine, as `LocalExecutor.status`; empty for a remote service."""


@dataclass(frozen=True, slots=True)
class ServedConversation:
    """The messages of a request, by role."""

    problem: Problem
    """The problem, from the last message."""
    system: tuple[Message, ...] = ()
    """The system message, which replaces the environment's."""
    history: tuple[Message, ...] = ()
    """The messages between the system message and the last one."""

    def continued(self, opening: Opening) -> Opening:
        """The opening of an episode, with the request's earlier messages."""
        own = tuple(message for message in opening.messages if message["role"] == "system")
        return replace(opening, messages=(*(self.system or own), *self.history, *opening.messages[len(own) :]))


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    conversation: ServedConversation
    sampling: Sampling
    session: str
    max_tokens: int | None
    """The maximum number of tokens after the prompt, including tool results."""


async def run_episode(
    service: ModelService, served: ServedAgent, request: EpisodeRequest, usage: Usage, observer: Observer
) -> Trace:
    """Run an episode. OpenAIError if it failed through no fault of the caller or the model."""
    environment, problem, chat = served.environment, request.conversation.problem, service.model.chat
    opening = request.conversation.continued(environment.opening(problem))
    try:
        episode = await environment.begin(problem)
        try:
            start = observed_start(chat, opening, episode)
            num_tokens = service.room_for(len(start.prompt_ids), request.max_tokens)
            limits = replace(served.limits, max_response_tokens=min(num_tokens, served.limits.max_response_tokens))
            agent = Agent(_CountedEngine(service, usage), chat, limits, request.sampling)
            trace = await agent.rollout(
                problem, episode.tools, trace_id=request.session, observer=observer, start=start, world=episode
            )
        finally:
            await _close(episode)
    except UserError as error:
        # The request was checked before, so the operator must fix a tool or the sandbox's address.
        raise OpenAIError(500, f"the agent is not set up well: {error}", code="agent_failed") from None
    except InfrastructureError as error:
        raise _failed(str(error)) from None
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        raise _failed(trace.note)
    return trace


async def _close(episode: Episode) -> None:
    """Close an episode; a failure does not affect the answer."""
    try:
        await episode.close()
    except InfrastructureError as error:
        logger.warning("an episode could not be closed: %s", error)


def _failed(reason: str) -> OpenAIError:
    return OpenAIError(503, f"the agent could not finish: {reason}", code="agent_failed", retry_after_s=1.0)


class _CountedEngine:
    """Satisfies `Engine` for one episode: each turn is a sequence of the request."""

    def __init__(self, service: ModelService, usage: Usage) -> None:
        self._service = service
        self._usage = usage

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        ask = Ask(token_ids, sampling, max_tokens, session)
        try:
            async with aclosing(self._service.pieces([ask], self._usage, has_text=False)) as pieces:
                async for piece in pieces:
                    stop_reason = None if piece.finish_reason is None else _STOP_REASONS[piece.finish_reason]
                    yield Chunk(piece.token_ids, piece.log_probs, stop_reason=stop_reason)
        except UserError as error:
            raise OpenAIError(400, str(error)) from None  # a conversation that the engine cannot continue

    def load(self) -> EngineLoad:
        return self._service.model.engine.load()

    async def cancel(self, session: str) -> None:
        await self._service.model.engine.cancel(session)

    async def release(self, session: str) -> None:
        """The request's sessions are released with it."""

    async def close(self) -> None:
        """The engine outlives a request."""
