"""One assistant turn from an engine. What it wrote before it failed is thrown away, and the turn is asked for again."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from rstar2.agent.chat_template import ASSISTANT_OPENING, ChatFormat
from rstar2.agent.events import Observer, TextGenerated, TurnRestarted, TurnStarted
from rstar2.agent.incremental import TextStream
from rstar2.agent.retry_pause import pause_s
from rstar2.engine.protocol import Chunk, Engine, Sampling
from rstar2.errors import InfrastructureError
from rstar2.records import Turn


@dataclass(frozen=True, slots=True)
class TurnRequest:
    session: str
    turn: int
    """Counted from 0 over the whole session."""
    token_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int


async def generate_turn(
    engine: Engine,
    chat: ChatFormat,
    request: TurnRequest,
    observer: Observer,
    *,
    max_retries: int,
    clock: Callable[[], float],
    waited_s: Callable[[], float],
    tells_text: bool = True,
) -> Turn:
    """InfrastructureError if the engine is still failing after `max_retries` repetitions. `waited_s` says how long the
    turn that ended had waited for an engine."""
    observer(TurnStarted(request.turn, ASSISTANT_OPENING))
    for attempt in range(max_retries + 1):
        try:
            return await _attempt(engine, chat, request, observer if tells_text else None, clock, waited_s)
        except InfrastructureError as error:
            if attempt == max_retries:
                raise InfrastructureError(f"turn {request.turn + 1} failed {attempt + 1} times: {error}") from error
            await asyncio.sleep(pause_s(attempt, error))
            observer(TurnRestarted(request.turn, str(error)))
    raise AssertionError("unreachable")


async def _attempt(
    engine: Engine,
    chat: ChatFormat,
    request: TurnRequest,
    text_observer: Observer | None,
    clock: Callable[[], float],
    waited_s: Callable[[], float],
) -> Turn:
    sampling = replace(
        request.sampling,
        stop_token_ids=chat.stop_token_ids,
        seed=_turn_seed(request.sampling.seed, request.turn),
    )
    chunks: list[Chunk] = []
    shown = TextStream(chat.tokenizer)
    started = clock()
    stream = engine.generate(request.session, request.token_ids, sampling, request.max_tokens)
    async with left_cleanly(stream) as arriving:
        async for chunk in arriving:
            chunks.append(chunk)
            if text_observer is None:
                continue
            text = shown.feed([token_id for token_id in chunk.token_ids if token_id not in chat.stop_token_ids])
            if text:
                text_observer(TextGenerated(text))
    if not chunks or chunks[-1].stop_reason is None:
        raise InfrastructureError("the engine ended a turn without saying why")
    queue_s = waited_s()
    token_ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    return Turn(
        token_ids=token_ids,
        log_probs=tuple(value for chunk in chunks for value in chunk.log_probs),
        entropies=tuple(value for chunk in chunks for value in chunk.entropies),
        text=chat.tokenizer.decode(token_ids),
        stop_reason=chunks[-1].stop_reason,
        policy_version=chunks[0].policy_version,
        queue_s=queue_s,
        generate_s=clock() - started - queue_s,
    )


def _turn_seed(seed: int | None, turn: int) -> int | None:
    """One seed a rollout; its turns must not draw the same numbers again."""
    return None if seed is None else zlib.crc32(f"{seed}/{turn}".encode())


@asynccontextmanager
async def left_cleanly(stream: AsyncIterator[Chunk]) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Leaving early ends the engine's side at once, and not when the generator happens to be collected."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
