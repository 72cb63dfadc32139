"""New weights for a running vLLM: written to disk, then read by vLLM while it is paused.

Invariant: no token is sampled with a mixture of old and new weights, nor from the old weights' keys and values. Running
turns are kept, recomputed, and continue with the new weights. If vLLM fails in the middle, its weights are of no known
version: the engine raises `TornWeightsError` until a later update succeeds.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from rstar2.errors import InfrastructureError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    Weights = Path | Iterable[tuple[str, Tensor]]
    """A folder of safetensors, or named tensors as `model.named_parameters()` gives them."""


class WeightControl(Protocol):
    """The interface that an update needs of vLLM, wherever it runs."""

    async def pause(self) -> None:
        """Stop generating, and keep running turns."""
        ...

    async def resume(self) -> None: ...

    async def reload(self, folder: Path) -> None: ...

    async def forget_prefixes(self) -> None: ...

    async def keeps_old_head(self) -> bool:
        """Whether an update would leave the old output head: on a CPU, if vLLM was started with a tied model."""
        ...


async def check_head(control: WeightControl) -> None:
    """Raises UserError if vLLM would keep its old head. One check is enough: a head is tied or not from the start."""
    if await control.keeps_old_head():
        raise UserError(
            "vLLM on a CPU cannot update a model whose output head is tied to its embedding: start it with the folder "
            "that `python -m rstar2.engine.vllm.checkpoint FOLDER TARGET` makes"
        )


async def replace_weights(control: WeightControl, weights: "Weights", scratch: Path | None) -> None:
    """Replaces vLLM's weights, and leaves it paused. `scratch` is a folder that vLLM can read under the same path; by
    default the machine's own temporary folder."""
    with TemporaryDirectory(prefix="rstar2-weights-", dir=scratch) as temporary:
        folder = await asyncio.to_thread(_prepared, weights, Path(temporary))
        await control.pause()
        try:
            await control.reload(folder)
            await control.forget_prefixes()
        except InfrastructureError as error:
            raise TornWeightsError(f"the update of vLLM's weights failed, and it is paused: {error}") from error


class TornWeightsError(InfrastructureError):
    """vLLM's weights are neither the old ones nor the new ones."""


def _prepared(weights: "Weights", temporary: Path) -> Path:
    from rstar2.engine.vllm.checkpoint import has_own_head, untie, write_weights

    if not isinstance(weights, Path):
        write_weights(weights, temporary)
        return temporary
    folder = weights.absolute()
    if has_own_head(folder):
        return folder
    untie(folder, temporary)
    return temporary
