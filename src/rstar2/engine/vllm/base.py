"""What the two forms of vLLM share: turns, versions, weight updates."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.vllm.turns import Turns
from rstar2.engine.vllm.weights import TornWeightsError, WeightControl, check_head, replace_weights
from rstar2.engine.vllm.wire import check_sampling
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.engine.vllm.weights import Weights


class VllmEngine(ABC):
    """Satisfies `Engine`. The prefix cache that a session comes back to is vLLM's own."""

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
        check_sampling(sampling)
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
        """vLLM keeps or drops what it cached as it sees fit."""

    async def pause(self) -> None:
        """Stand still: turns wait, and their caches stay."""
        await self._control.pause()

    async def resume(self) -> None:
        await self._control.resume()

    async def update_weights(self, weights: "Weights", policy_version: int) -> None:
        """Turns that run go on with the new weights. Each chunk has the version of the moment in which it arrived."""
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
        """The weights are of no known version: what runs fails, and so does what is asked."""
        self._torn = error
        self._turns.fail(error)
