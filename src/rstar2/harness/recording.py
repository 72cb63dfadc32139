"""Records one episode's requests and answers, generates them one after the other, and enforces its limits."""

import asyncio
import contextvars
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rstar2.agent import Agent
from rstar2.agent.generate import left_cleanly, sampling_of_turn
from rstar2.agent.retry import with_retries
from rstar2.engine import Chunk, Sampling
from rstar2.errors import InfrastructureError
from rstar2.harness.conversation import Exchange, Said
from rstar2.harness.stitch import Call
from rstar2.records import Outcome, StopReason
from rstar2.serve.errors import OpenAIError
from rstar2.serve.generation import Ask, Piece

_NO_TOKENS = "its token budget is used up"
END_S = 10.0
"""Seconds that a request gets to end when its episode is over."""
CURRENT: contextvars.ContextVar["Recording"] = contextvars.ContextVar("rstar2_recording")
"""The episode whose request is being answered."""


@dataclass(frozen=True, slots=True)
class PendingChat:
    """A chat request that is not answered yet."""

    heading: str
    messages: tuple[Said, ...]
    answer_of: Callable[[str], Said]
    """Turns the model's text into the message that the caller gets."""


ASKED: contextvars.ContextVar[PendingChat | None] = contextvars.ContextVar("rstar2_asked", default=None)
"""The chat request that is being answered; None on routes that take no messages."""


@dataclass(slots=True)
class _Sampled:
    """The engine's side of one answer."""

    began: float
    queue_s: float = 0.0
    seconds: float = 0.0
    num_tokens: int = 0
    entropies: list[float] = field(default_factory=list)
    policy_version: int = 0


class Recording:
    """The record of one episode. Concurrent requests are generated one after the other."""

    def __init__(self, id: str, agent: Agent, max_context_tokens: int) -> None:
        self.calls: list[Call] = []
        self.exchanges: list[Exchange] = []
        self.fault = ""
        """Why the model could not answer, if the fault is ours."""
        self.limit: tuple[Outcome, str] | None = None
        """The limit that a request exceeded."""
        self._id = id
        self._agent = agent
        self._max_context_tokens = max_context_tokens
        self._num_asks = 0
        self._turn = asyncio.Lock()
        self._sampled: dict[str, _Sampled] = {}
        self._open: set[asyncio.Task[None]] = set()
        """The unanswered requests."""
        self._quiet_since = time.monotonic()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Hold the current request as unanswered."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            yield
        finally:
            self._open.discard(task)
            self._quiet_since = time.monotonic()

    async def end(self) -> None:
        """Cancel the unanswered requests, and wait for their end."""
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(set(self._open), timeout=END_S)

    @property
    def quiet_s(self) -> float:
        """How long the program has had no request open."""
        return 0.0 if self._open else time.monotonic() - self._quiet_since

    def admitted(self, asks: Sequence[Ask]) -> list[Ask]:
        """The sequences of a request with the run's temperature and their own seeds. OpenAIError if the episode has
        used up its turns or tokens."""
        limits = self._agent.limits
        if self._num_asks + len(asks) > limits.max_turns + 1:
            raise self._refused(Outcome.TURN_LIMIT, f"its {limits.max_turns} turns, and one to answer in, are used up")
        admitted = []
        for ask in asks:
            room = min(self._num_left, self._max_context_tokens - len(ask.token_ids))
            if room < 1:
                raise self._refused(Outcome.TRUNCATED, _NO_TOKENS)
            admitted.append(self._with_run_sampling(ask, min(ask.max_tokens, room)))
        return admitted

    @property
    def _num_left(self) -> int:
        """How many tokens the episode may still sample."""
        num_sampled = sum(len(call.token_ids) for call in self.calls)
        num_sampled += sum(sampled.num_tokens for sampled in self._sampled.values())
        return self._agent.limits.max_response_tokens - num_sampled

    def _refused(self, outcome: Outcome, reason: str) -> OpenAIError:
        self.limit = self.limit or (outcome, reason)
        return OpenAIError(400, f"this episode may ask no more: {reason}", code="context_length_exceeded")

    def _with_run_sampling(self, ask: Ask, max_tokens: int) -> Ask:
        stop_ids = ask.sampling.stop_token_ids
        sampling = sampling_of_turn(replace(self._agent.sampling, stop_token_ids=stop_ids), self._num_asks)
        session = f"{self._id}/{self._num_asks}"
        self._num_asks += 1
        return replace(ask, sampling=sampling, max_tokens=max_tokens, session=session)

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """Generate one sequence, within the tokens that those before it have left: without tokens if none are left."""
        async with self._turn:
            sampled = self._sampled[session] = _Sampled(time.monotonic())
            max_tokens = min(max_tokens, self._num_left)
            if max_tokens < 1:
                yield Chunk((), (), stop_reason=StopReason.TOKEN_LIMIT)
                return
            async with left_cleanly(self._agent.engine.generate(self._id, token_ids, sampling, max_tokens)) as chunks:
                async for chunk in chunks:
                    if not sampled.entropies:
                        sampled.policy_version = chunk.policy_version
                    sampled.num_tokens += len(chunk.token_ids)
                    sampled.entropies += chunk.entropies
                    sampled.queue_s = self._agent.waited_s()
                    sampled.seconds = time.monotonic() - sampled.began
                    yield chunk

    async def answer(self, asks: Sequence[Ask], pieces: Callable[[], AsyncGenerator[Piece]]) -> list[Piece]:
        """Generate all pieces of the answers, and record the complete answers. If the program disconnects earlier, it
        got nothing, and nothing is recorded. OpenAIError if no token was left for any of them."""

        async def attempt() -> list[Piece]:
            self._forget_samples(asks)
            return [piece async for piece in pieces()]

        try:
            made = await with_retries(attempt, self._agent.limits.max_fault_retries)
        except InfrastructureError as error:
            self.fault = self.fault or f"the engine failed: {error}"
            raise
        else:
            if self._num_left < 1 and not any(piece.token_ids for piece in made):
                raise self._refused(Outcome.TRUNCATED, _NO_TOKENS)
            for number, ask in enumerate(asks):
                self._record(ask, [piece for piece in made if piece.choice == number])
            return made
        finally:
            self._forget_samples(asks)

    def _forget_samples(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._sampled.pop(ask.session, None)

    def _record(self, ask: Ask, pieces: Sequence[Piece]) -> None:
        token_ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
        sampled = self._sampled.pop(ask.session)
        if not token_ids:
            return
        is_cut = pieces[-1].finish_reason == "length"
        call = Call(
            prompt_ids=tuple(ask.token_ids),
            token_ids=token_ids,
            log_probs=tuple(value for piece in pieces for value in piece.log_probs),
            entropies=tuple(sampled.entropies[: len(token_ids)]),
            stop_reason=StopReason.TOKEN_LIMIT if is_cut else StopReason.END_OF_TURN,
            policy_version=sampled.policy_version,
            queue_s=sampled.queue_s,
            generate_s=max(0.0, sampled.seconds - sampled.queue_s),
        )
        self.calls.append(call)
        asked = ASKED.get()
        if asked is not None:
            said = asked.answer_of("".join(piece.text for piece in pieces))
            self.exchanges.append(Exchange(asked.heading, asked.messages, said, call))
