"""Scores given tokens by their log-probabilities: a request, and its progress chunk by chunk.

Invariant: all keys and values of a request are computed with the same weights. After a weight update it starts again.
"""

import asyncio
from collections.abc import Sequence

from rstar2.engine.embedded.blocks import BlockManager
from rstar2.engine.embedded.runner import ChunkScores, Runner
from rstar2.engine.embedded.scheduler import EngineSequence, PrefillChunk
from rstar2.engine.protocol import TokenScores


class Scoring:
    """One request for scores. Only the engine's thread calls its methods."""

    def __init__(
        self,
        token_ids: Sequence[int],
        start: int,
        num_top: int,
        temperature: float,
        loop: asyncio.AbstractEventLoop,
        future: "asyncio.Future[TokenScores]",
    ) -> None:
        self.future = future
        self._sequence = EngineSequence(list(token_ids), len(token_ids))
        self._start, self._num_top, self._temperature = start, num_top, temperature
        self._loop = loop
        self._epoch = -1
        self._scores: list[ChunkScores] = []

    @property
    def is_wanted(self) -> bool:
        """Whether the caller still waits."""
        return not self.future.done()

    def advance(self, blocks: BlockManager, runner: Runner, max_tokens: int) -> bool:
        """Computes the next chunk, if the cache has room. True if it was the last."""
        sequence, num_tokens = self._sequence, len(self._sequence.token_ids) - 1
        if self._epoch != blocks.epoch:
            self._epoch, sequence.num_computed, self._scores = blocks.epoch, 0, []
        if not sequence.blocks and num_tokens > 0:
            num_missing = blocks.num_blocks_for(num_tokens)
            if num_missing > blocks.num_free:
                return False
            sequence.blocks = blocks.allocate(num_missing)
        end = min(sequence.num_computed + max_tokens, num_tokens)
        if end > sequence.num_computed:
            chunk = PrefillChunk(sequence, sequence.num_computed, end)
            self._scores.append(runner.score(chunk, self._start, self._num_top, self._temperature))
            sequence.num_computed = end
        return end == num_tokens

    def end(self, blocks: BlockManager) -> None:
        """Frees the blocks, and passes the scores to the caller if it still waits."""
        blocks.free(self._sequence.blocks)
        scores = TokenScores(
            tuple(value for chunk in self._scores for value in chunk.log_probs),
            tuple(rank for chunk in self._scores for rank in chunk.ranks),
            tuple(
                tuple(zip(ids, values, strict=True))
                for chunk in self._scores
                for ids, values in zip(chunk.top_ids, chunk.top_log_probs, strict=True)
            ),
        )
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, self.future, scores)

    def fail(self, error: BaseException) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_settle, self.future, error)


def _settle(future: "asyncio.Future[TokenScores]", outcome: TokenScores | BaseException) -> None:
    if future.done():  # its caller left
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
