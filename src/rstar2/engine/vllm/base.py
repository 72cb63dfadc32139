"""The base of the two forms of vLLM: turns and how they are cancelled, versions, weight updates."""

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.vllm.weights import TornWeightsError, WeightControl, check_head, replace_weights
from rstar2.errors import UserError
from rstar2.records import StopReason

if TYPE_CHECKING:
    from rstar2.engine.vllm.weights import Weights


class Turns:
    """Running turns, each of which can be ended from outside at once, whatever it waits for."""

    def __init__(self) -> None:
        self._cancelled: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        """The cancellations of each session, one for each of its turns."""

    async def run(self, session: str, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
        """The chunks of one turn. When the turn is cancelled, `chunks` is closed, which ends it at its source."""
        cancelled = asyncio.get_running_loop().create_future()
        self._cancelled[session].add(cancelled)
        try:
            async with aclosing(chunks):
                while (chunk := await _next_or(cancelled, chunks)) is not None:
                    yield chunk
                    if chunk.stop_reason is not None:
                        return
            if cancelled.done():
                cancelled.result()
                yield Chunk((), (), stop_reason=StopReason.CANCELLED)
        finally:
            self._cancelled[session].discard(cancelled)
            if not self._cancelled[session]:
                del self._cancelled[session]

    def cancel(self, session: str) -> None:
        for cancelled in self._cancelled.get(session, ()):
            if not cancelled.done():
                cancelled.set_result(None)

    def fail(self, error: Exception) -> None:
        """Ends every running turn with the error."""
        for session in list(self._cancelled.values()):
            for cancelled in session:
                if not cancelled.done():
                    cancelled.set_exception(error)


async def _next_or(cancelled: asyncio.Future[None], chunks: AsyncGenerator[Chunk]) -> Chunk | None:
    """The next chunk; None if there is no more, or if the turn was cancelled."""
    step = asyncio.ensure_future(anext(chunks, None))
    try:
        await asyncio.wait((step, cancelled), return_when=asyncio.FIRST_COMPLETED)
        return await step if step.done() else None
    finally:
        if not step.done():
            step.cancel()
            await asyncio.wait((step,))


class VllmEngine(ABC):
    """Satisfies `Engine`. The prefix cache is vLLM's own."""

    def __init__(self, control: WeightControl, max_context_tokens: int, scratch: Path | None) -> None:
        self._control = control
        self._max_context_tokens = max_context_tokens
        self._scratch = scratch
        self._turns = Turns()
        self._policy_version = 0
        self._torn: TornWeightsError | None = None
        self._is_head_checked = False

    @property
    def policy_version(self) -> int:
        return self._policy_version

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]:
        if self._torn is not None:
            raise TornWeightsError(str(self._torn))
        if sampling.entropies:
            raise UserError("vLLM does not report entropies: leave sampling.entropies off, or use the embedded engine")
        num_left = self._max_context_tokens - len(token_ids)
        if num_left < 1:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, and the context holds {self._max_context_tokens}: shorten "
                f"it, or raise vLLM's --max-model-len as far as the model allows"
            )
        chunks = self._chunks(session, token_ids, sampling, min(max_tokens, num_left))
        async with aclosing(self._turns.run(session, chunks)) as arriving:
            async for chunk in arriving:
                yield replace(chunk, policy_version=self._policy_version)

    @abstractmethod
    def _chunks(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]: ...

    @abstractmethod
    def load(self) -> EngineLoad: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def cancel(self, session: str) -> None:
        self._turns.cancel(session)

    async def release(self, session: str) -> None:  # noqa: B027
        """Does nothing: vLLM manages its cache itself."""

    async def pause(self) -> None:
        """Stop generating: running turns wait, and their caches stay."""
        await self._control.pause()

    async def resume(self) -> None:
        await self._control.resume()

    async def update_weights(self, weights: "Weights", policy_version: int) -> None:
        """Replaces the weights. Running turns continue with the new ones. Each chunk has the version of its arrival."""
        if not self._is_head_checked:
            await check_head(self._control)
            self._is_head_checked = True
        try:
            await replace_weights(self._control, weights, self._scratch)
        except TornWeightsError as error:
            self._tear(error)
            raise
        self._torn, self._policy_version = None, policy_version
        await self._control.resume()

    def _tear(self, error: TornWeightsError) -> None:
        """Marks the weights as being of no known version: running turns fail, and so do new ones."""
        self._torn = error
        self._turns.fail(error)
