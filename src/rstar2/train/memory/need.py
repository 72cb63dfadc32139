"""How much memory the parts of a run take on one GPU: weights, optimizer, gradients, the engine's workspace. Pure."""

from dataclasses import dataclass, replace
from typing import Any, Self

from rstar2.config import Recipe
from rstar2.engine.embedded.options import CUDA_BLOCK_SIZE
from rstar2.train.memory.activations import GpuActivations
from rstar2.train.memory.sizes import ModelSizes

_MASTER_BYTES = 4
"""Bytes of a float32 master weight, and of a summed gradient."""
_MOMENT_BYTES = 8
"""Bytes of AdamW's two moments of each weight."""
_UPDATE_BYTES = 4
"""Bytes of AdamW's temporary for each weight, while it updates all of them."""
_PROCESS_BYTES = 5 << 28
"""Bytes that a second process takes on the GPU: CUDA's context, libraries and compiled kernels."""


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """The bytes of each part. A part whose size can be chosen is a method."""

    weights: int
    """The trained weights; with adapters, the frozen weights and the adapters."""
    engine_weights: int
    """Copies with the adapters merged in: one for the pass, one more for an engine that samples meanwhile."""
    optimizer: int
    gradients: int
    reference: int
    optimizer_step: int
    """Additional bytes during the optimizer's step, when activations are freed."""
    engine_workspace: int
    cache_token: int
    """Bytes of one token in the engine's cache."""
    activations: GpuActivations

    @classmethod
    def of(cls, recipe: Recipe, config: Any, itemsize: int) -> Self:
        """`config` is the model's `transformers` config; `itemsize` is that of the dtype it computes in."""
        sizes, lora = ModelSizes.of(config), recipe.model.lora
        num_params = sizes.num_params
        weights, copies, masters = num_params * itemsize, 0, 0 if itemsize == _MASTER_BYTES else _MASTER_BYTES
        num_trained = num_params
        if lora is not None:
            num_trained, masters = sizes.num_adapted(lora.target_modules, lora.rank), 0
            weights += num_trained * _MASTER_BYTES
            copies = sizes.num_projected(lora.target_modules) * itemsize
            copies += num_params * itemsize if recipe.train.max_staleness else 0
        return cls(
            weights=weights,
            engine_weights=copies,
            optimizer=num_trained * (_MOMENT_BYTES + masters),
            gradients=num_trained * _MASTER_BYTES,
            reference=num_trained * (itemsize if lora is None else _MASTER_BYTES) if recipe.algo.kl_coef else 0,
            optimizer_step=num_trained * _UPDATE_BYTES,
            engine_workspace=_PROCESS_BYTES + _workspace_bytes(recipe, sizes, itemsize),
            cache_token=2 * sizes.layers * sizes.kv_heads * sizes.head_dim * itemsize,
            activations=GpuActivations(
                sizes,
                itemsize,
                is_checkpointed=False,
                is_full=lora is None,
                is_ours=itemsize < _MASTER_BYTES and (lora is None or not lora.dropout),
            ),
        )

    @property
    def fixed(self) -> int:
        """The bytes of the parts that are in memory all the time."""
        return self.weights + self.engine_weights + self.optimizer + self.reference + self.engine_workspace

    def update(self, num_tokens: int, *, is_checkpointed: bool) -> int:
        """Additional bytes of an update with micro-batches of `num_tokens`."""
        activations = replace(self.activations, is_checkpointed=is_checkpointed).measure(num_tokens).total
        return self.gradients + max(activations, self.optimizer_step)


def _workspace_bytes(recipe: Recipe, sizes: ModelSizes, itemsize: int) -> int:
    """Bytes of the engine's activations, which CUDA graphs keep in pools, and of its block tables."""
    of_token = (4 * sizes.hidden + sizes.qkv + sizes.queries + 3 * sizes.intermediate) * itemsize
    num_prefilled = 1 << (recipe.engine.prefill_chunk_tokens - 1).bit_length()
    num_rows = recipe.engine.max_batch
    tables = 3 * num_rows * -(-recipe.model.context_tokens // CUDA_BLOCK_SIZE) * 4
    return num_prefilled * of_token + num_rows * (of_token + 2 * sizes.vocab * itemsize) + tables
