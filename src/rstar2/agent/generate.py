"""Generates one assistant turn. If the engine fails, the tokens of the turn are dropped, and the turn is retried."""

import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from rstar2.agent.chat_template import ASSISTANT_OPENING, ChatFormat
from rstar2.agent.events import Observer, TextGenerated, TurnRestarted, TurnStarted, ignore_event
from rstar2.agent.incremental import NOT_BEGUN, BegunTurn, TextStream
from rstar2.agent.retry import with_retries
from rstar2.engine.protocol import Chunk, Sampling
from rstar2.errors import InfrastructureError
from rstar2.records import Turn

Generate = Callable[[Sequence[int], Sampling, int], AsyncIterator[Chunk]]
"""An engine's `generate` for one conversation: it takes the context, the sampling, and the most tokens to make."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    turn: int
    """The number of the turn in its conversation, from 0."""
    token_ids: Sequence[int]
    """The context that the engine continues: everything before the turn, and the first tokens in `begun`."""
    sampling: Sampling
    max_tokens: int
    """The most tokens of the whole turn, including those in `begun`."""
    begun: BegunTurn = NOT_BEGUN
    """The first tokens of the turn, if another rollout sampled them."""


async def generate_turn(
    generate: Generate,
    chat: ChatFormat,
    request: TurnRequest,
    observer: Observer = ignore_event,
    *,
    max_retries: int,
    clock: Callable[[], float],
    waited_s: Callable[[], float],
    reports_text: bool = True,
) -> Turn:
    """Generates the turn. InfrastructureError if the engine still fails after `max_retries` retries. `waited_s` returns
    how long the turn that just ended had waited for an engine."""
    observer(TurnStarted(request.turn, ASSISTANT_OPENING))
    try:
        return await with_retries(
            lambda: _attempt(generate, chat, request, observer if reports_text else None, clock, waited_s),
            max_retries,
            on_retry=lambda error: observer(TurnRestarted(request.turn, str(error))),
        )
    except InfrastructureError as error:
        raise InfrastructureError(f"turn {request.turn + 1} failed {max_retries + 1} times: {error}") from error


async def _attempt(
    generate: Generate,
    chat: ChatFormat,
    request: TurnRequest,
    text_observer: Observer | None,
    clock: Callable[[], float],
    waited_s: Callable[[], float],
) -> Turn:
    chunks: list[Chunk] = []
    shown = TextStream(chat.tokenizer)
    started = clock()
    begun = request.begun
    num_tokens_left = request.max_tokens - len(begun.token_ids)
    async with left_cleanly(generate(request.token_ids, request.sampling, num_tokens_left)) as arriving:
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
    token_ids = begun.token_ids + tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    return Turn(
        token_ids=token_ids,
        log_probs=begun.log_probs + tuple(value for chunk in chunks for value in chunk.log_probs),
        entropies=begun.entropies + tuple(value for chunk in chunks for value in chunk.entropies),
        text=chat.tokenizer.decode(token_ids),
        stop_reason=chunks[-1].stop_reason,
        policy_version=chunks[0].policy_version,
        queue_s=queue_s,
        generate_s=clock() - started - queue_s,
    )


def sampling_of_turn(sampling: Sampling, turn: int) -> Sampling:
    """The sampling of one turn. A rollout has one seed; each turn gets a seed derived from it, so that no two draw the
    same numbers."""
    return sampling if sampling.seed is None else replace(sampling, seed=zlib.crc32(f"{sampling.seed}/{turn}".encode()))


@asynccontextmanager
async def left_cleanly(stream: AsyncIterator[Chunk]) -> AsyncIterator[AsyncIterator[Chunk]]:
    """Closes the stream on leaving, so that the engine's side ends at once and not at garbage collection."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
