"""Generates the choices of a request with the engine, and yields them piece by piece."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from rstar2.agent.generate import left_cleanly
from rstar2.engine.protocol import Engine, Sampling, Tokenizer
from rstar2.errors import InfrastructureError
from rstar2.records import StopReason
from rstar2.serve.text import TextReader

FINISH_REASONS = {
    StopReason.END_OF_TURN: "stop",
    StopReason.TOKEN_LIMIT: "length",
    StopReason.CANCELLED: "abort",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence for the engine to continue."""

    token_ids: Sequence[int]
    sampling: Sampling
    max_tokens: int
    session: str
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    hidden_ids: frozenset[int] = frozenset()
    """Ids that are left out of the text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some tokens of one choice, in order. Only a choice's last piece has a finish reason."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: str | None = None


@dataclass(slots=True)
class Answer:
    """A complete choice."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish_reason: str = "length"


async def pieces_of(
    engine: Engine, tokenizer: Tokenizer, ask: Ask, choice: int = 0, *, has_text: bool = True
) -> AsyncGenerator[Piece]:
    """Generate one choice. Leaving the iterator early cancels it in the engine. Without `has_text` nothing is
    decoded."""
    reader = TextReader(tokenizer, ask.hidden_ids, ask.stops, keeps_stop=ask.keeps_stop)
    stream = engine.generate(ask.session, ask.token_ids, ask.sampling, ask.max_tokens)
    async with left_cleanly(stream) as chunks:
        async for chunk in chunks:
            text, num_used = reader.feed(chunk.token_ids) if has_text or ask.stops else ("", len(chunk.token_ids))
            finish_reason = None
            if reader.has_stopped:
                finish_reason = FINISH_REASONS[StopReason.END_OF_TURN]
            elif chunk.stop_reason is not None:
                finish_reason = FINISH_REASONS[chunk.stop_reason]
                text += reader.finish()
            yield Piece(choice, text, chunk.token_ids[:num_used], chunk.log_probs[:num_used], finish_reason)
            if finish_reason is not None:
                return
    raise InfrastructureError("the engine ended an answer without saying why")


async def merged(
    engine: Engine, tokenizer: Tokenizer, asks: Sequence[Ask], *, has_text: bool = True
) -> AsyncGenerator[Piece]:
    """Yield the pieces of all choices as they arrive. An error of one choice ends them all."""
    if len(asks) == 1:
        async with aclosing(pieces_of(engine, tokenizer, asks[0], has_text=has_text)) as pieces:
            async for piece in pieces:
                yield piece
        return
    arriving: asyncio.Queue[Piece | BaseException] = asyncio.Queue()

    async def produce(choice: int, ask: Ask) -> None:
        try:
            async with aclosing(pieces_of(engine, tokenizer, ask, choice, has_text=has_text)) as pieces:
                async for piece in pieces:
                    arriving.put_nowait(piece)
        except Exception as error:
            arriving.put_nowait(error)

    tasks = [asyncio.create_task(produce(choice, ask)) for choice, ask in enumerate(asks)]
    try:
        num_left = len(asks)
        while num_left:
            item = await arriving.get()
            if isinstance(item, BaseException):
                raise item
            num_left -= item.finish_reason is not None
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collected(pieces: AsyncGenerator[Piece], num_choices: int) -> list[Answer]:
    """Wait for all choices, and return them complete."""
    answers = [Answer() for _ in range(num_choices)]
    async with aclosing(pieces):
        async for piece in pieces:
            answer = answers[piece.choice]
            answer.text += piece.text
            answer.token_ids += piece.token_ids
            answer.log_probs += piece.log_probs
            answer.finish_reason = piece.finish_reason or answer.finish_reason
    return answers


def with_seed_of(sampling: Sampling, choice: int) -> Sampling:
    """Give each choice its own seed, so that the choices of a request differ, as vLLM's do."""
    return sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + choice)
