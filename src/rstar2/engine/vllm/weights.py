"""New weights for a vLLM that runs: written, then read by vLLM while it stands still.

Invariant: no token is made with a mixture of old and new weights, and none from keys and values of the old ones. Turns
that run are kept, computed again, and go on with the new weights. If vLLM fails in the middle, its weights are of no
known version: the error says so, and only a later update that succeeds makes the engine good again.
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
    """What an update asks of vLLM, wherever it runs."""

    async def pause(self) -> None:
        """Stand still, and keep what runs."""
        ...

    async def resume(self) -> None: ...

    async def reload(self, folder: Path) -> None: ...

    async def forget_prefixes(self) -> None: ...

    async def keeps_old_head(self) -> bool:
        """Whether it would go on with the old output head: on a CPU, when it was started with a tied model."""
        ...


async def check_head(control: WeightControl) -> None:
    """Once for each vLLM: whether the head is tied is decided when it starts."""
    if await control.keeps_old_head():
        raise UserError(
            "vLLM on a CPU cannot update a model whose output head is tied to its embedding: start it with the folder "
            "that `python -m rstar2.engine.vllm.checkpoint FOLDER TARGET` makes"
        )


async def replace_weights(control: WeightControl, weights: "Weights", scratch: Path | None) -> None:
    """On return vLLM still stands still, with the new weights. `scratch` is a folder that vLLM can read under the same
    path; the machine's own temporary folder if None."""
    with TemporaryDirectory(prefix="rstar2-weights-", dir=scratch) as temporary:
        folder = await asyncio.to_thread(_prepared, weights, Path(temporary))
        await control.pause()
        try:
            await control.reload(folder)
            await control.forget_prefixes()
        except InfrastructureError as error:
            raise TornWeightsError(f"the update of vLLM's weights failed, and it stands still: {error}") from error


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
