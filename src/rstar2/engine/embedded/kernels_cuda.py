"""The device operations on CUDA, fused so that a decode step is a short list of launches.

The cache of a layer is blocks x K x S x D, so the part of a block that one attention program reads is contiguous.
Suffixes are those of `architecture`.
"""

from typing import Any

import torch
from torch import Tensor

from rstar2.engine.embedded import invariant, triton_kernels
from rstar2.engine.embedded.architecture import ForwardBatch, rotary_table
from rstar2.engine.embedded.cuda_memory import ReturnableTensor
from rstar2.engine.embedded.options import PREFILL_TILE, VOCABULARY_TILE, EngineLimits
from rstar2.engine.embedded.weights import LayerWeights, Shape, Weights
from rstar2.errors import UserError

_CONTEXT_TILE = 64
_MIN_DOT = 16
"""The smallest side of a matrix that Triton multiplies."""
_GATE_TILE = 1024
_MAX_SPLITS = 16
_ENOUGH_PROGRAMS = 2048
"""Enough programs of decode attention, of two warps each: about as many as an H200's 132 multiprocessors hold at
once."""
_LOG2_E = 1.4426950408889634


class CudaKernels:
    def __init__(self, weights: Weights, limits: EngineLimits) -> None:
        self._shape = shape = weights.shape
        if shape.head_dim < _MIN_DOT or shape.head_dim & (shape.head_dim - 1):
            raise UserError(
                f"model: its head dimension is {shape.head_dim}; on CUDA it must be a power of 2 from 16 on"
            )
        self._block_size = limits.block_size
        self._rotary = rotary_table(weights, limits.max_context_tokens)
        cache_shape = (len(weights.layers), 2, limits.num_blocks, shape.num_kv_heads, limits.block_size, shape.head_dim)
        self._returnable: ReturnableTensor | None = None
        if limits.gives_cache_back:
            self._returnable = ReturnableTensor(cache_shape, weights.dtype, weights.device)
            self._cache = self._returnable.tensor
        else:
            self._cache = torch.zeros(cache_shape, dtype=weights.dtype, device=weights.device)
        self._group_size = shape.num_heads // shape.num_kv_heads
        self._score_scale = shape.head_dim**-0.5 * _LOG2_E

    def give_cache_back(self) -> None:
        """Gives the cache's memory back; its contents are lost. Nothing may attend until `take_cache`."""
        if self._returnable is not None:
            self._returnable.give_back()

    def take_cache(self) -> None:
        if self._returnable is not None:
            self._returnable.take()

    def add_norm(self, hidden_TH: Tensor, residual_TH: Tensor | None, weight_H: Tensor) -> tuple[Tensor, Tensor]:
        """The norm of hidden states plus residual, and their sum, which is left in `residual_TH`."""
        num_tokens, width = hidden_TH.shape
        normed_TH = torch.empty_like(hidden_TH)
        sum_TH = hidden_TH if residual_TH is None else residual_TH
        triton_kernels.add_norm_kernel[(num_tokens,)](
            hidden_TH,
            residual_TH,
            weight_H,
            sum_TH,
            normed_TH,
            width,
            self._shape.norm_eps,
            IS_SUM=residual_TH is not None,
            WIDTH=_next_power_of_2(width),
        )
        return normed_TH, sum_TH

    def gate(self, gate_up_TX: Tensor) -> Tensor:
        num_tokens, width = gate_up_TX.shape
        out_TX = gate_up_TX.new_empty((num_tokens, width // 2))
        triton_kernels.gate_kernel[(num_tokens, -(-(width // 2) // _GATE_TILE))](
            gate_up_TX, out_TX, width // 2, TILE=_GATE_TILE
        )
        return out_TX

    def attend(self, qkv_TX: Tensor, layer: LayerWeights, layer_index: int, batch: ForwardBatch) -> Tensor:
        keys, values = self._cache[layer_index]
        rotate_and_store(
            qkv_TX,
            batch.positions_T,
            batch.slots_T,
            self._rotary,
            (layer.q_norm, layer.k_norm),
            keys,
            values,
            self._block_size,
            self._shape,
        )
        return self._attend(qkv_TX, keys, values, batch)

    def _attend(self, qkv_TX: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch) -> Tensor:
        shape = self._shape
        sizes: dict[str, Any] = {"K": shape.num_kv_heads, "D": shape.head_dim, "S": self._block_size}
        out_TX = qkv_TX.new_empty((len(qkv_TX), shape.num_heads * shape.head_dim))
        if batch.tiles is None:
            self._attend_rows(qkv_TX, out_TX, keys, values, batch, sizes)
        else:
            triton_kernels.attend_tiles_kernel[(len(batch.tiles), shape.num_heads)](
                qkv_TX,
                out_TX,
                keys,
                values,
                batch.table_RP,
                batch.positions_T,
                batch.tiles,
                qkv_TX.stride(0),
                batch.table_RP.stride(0),
                self._score_scale,
                G=self._group_size,
                Q_TILE=PREFILL_TILE,
                L_TILE=_CONTEXT_TILE,
                **sizes,
                num_warps=4,
                num_stages=2,
            )
        return out_TX

    def _attend_rows(
        self, qkv_BX: Tensor, out_BX: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch, sizes: dict[str, Any]
    ) -> None:
        shape, num_rows = self._shape, len(qkv_BX)
        num_splits = _num_splits(num_rows * shape.num_kv_heads)
        partial_shape = (num_rows, shape.num_heads, num_splits, shape.head_dim + 2)
        target = out_BX if num_splits == 1 else out_BX.new_empty(partial_shape, dtype=torch.float32)
        triton_kernels.attend_rows_kernel[(num_rows, shape.num_kv_heads, num_splits)](
            qkv_BX,
            target,
            keys,
            values,
            batch.table_RP,
            batch.positions_T,
            qkv_BX.stride(0),
            batch.table_RP.stride(0),
            self._score_scale,
            G=self._group_size,
            G_TILE=max(_MIN_DOT, _next_power_of_2(self._group_size)),
            L_TILE=_CONTEXT_TILE,
            NUM_SPLITS=num_splits,
            **sizes,
            num_warps=2,
            num_stages=4,
        )
        if num_splits > 1:
            triton_kernels.combine_kernel[(num_rows * shape.num_heads,)](
                target, out_BX, NUM_SPLITS=num_splits, D=shape.head_dim, num_warps=1
            )

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_rows, vocab_size = logits_BV.shape
        token_B = torch.empty(num_rows, dtype=torch.int64, device=logits_BV.device)
        log_prob_B, entropy_B = (torch.empty(num_rows, device=logits_BV.device) for _ in range(2))
        triton_kernels.draw_kernel[(num_rows,)](
            logits_BV,
            uniform_B.float(),
            inverse_temperature_B,
            token_B,
            log_prob_B,
            entropy_B,
            vocab_size,
            V_TILE=VOCABULARY_TILE,
            num_warps=8,
        )
        return token_B, log_prob_B, entropy_B


class InvariantCudaKernels(CudaKernels):
    """The batch-invariant kernels, whose attention and log-probabilities equal those of a trainer's pass, bit for
    bit."""

    def __init__(self, weights: Weights, limits: EngineLimits, max_rows: int) -> None:
        super().__init__(weights, limits)
        if weights.dtype is not torch.bfloat16:
            raise UserError(f"engine.batch_invariant: on a GPU the model's dtype must be bfloat16, not {weights.dtype}")
        row = torch.arange(max_rows, device=weights.device)
        self._decode_tiles = torch.stack((row, row, row + 1), dim=1)

    def _attend(self, qkv_TX: Tensor, keys: Tensor, values: Tensor, batch: ForwardBatch) -> Tensor:
        tiles = self._decode_tiles[: len(qkv_TX)] if batch.tiles is None else batch.tiles
        return invariant.attend(
            qkv_TX, keys, values, self._block_size, batch.table_RP, batch.positions_T, tiles, self._shape
        )[0]

    def draw(
        self, logits_BV: Tensor, uniform_B: Tensor, inverse_temperature_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        token_B, _, _ = super().draw(logits_BV, uniform_B, inverse_temperature_B)
        scale_B = torch.where(inverse_temperature_B == 0, 1.0, inverse_temperature_B)
        log_prob_B, entropy_B, normalizer_B = (torch.empty_like(scale_B) for _ in range(3))
        triton_kernels.log_prob_kernel[(len(logits_BV),)](
            logits_BV,
            token_B,
            scale_B,
            log_prob_B,
            entropy_B,
            normalizer_B,
            logits_BV.shape[1],
            1,
            TILE=VOCABULARY_TILE,
        )
        return token_B, log_prob_B, entropy_B


def rotate_and_store(
    qkv_TX: Tensor,
    positions_T: Tensor,
    slots_T: Tensor,
    rotary: Tensor,
    norms: tuple[Tensor | None, Tensor | None],
    keys: Tensor,
    values: Tensor,
    block_size: int,
    shape: Shape,
) -> None:
    """Norms queries, where the model has weights for it, and rotates them in place; does the same to keys into the
    cache, and stores values beside them."""
    q_norm, k_norm = norms
    triton_kernels.rotate_and_store_kernel[(len(qkv_TX),)](
        qkv_TX,
        positions_T,
        slots_T,
        rotary,
        qkv_TX if q_norm is None else q_norm,
        qkv_TX if k_norm is None else k_norm,
        keys,
        values,
        qkv_TX.stride(0),
        shape.norm_eps,
        N=shape.num_heads,
        HEAD_TILE=_next_power_of_2(shape.num_heads + shape.num_kv_heads),
        HAS_NORMS=q_norm is not None,
        K=shape.num_kv_heads,
        D=shape.head_dim,
        S=block_size,
        num_warps=2,
    )


def _num_splits(num_programs: int) -> int:
    """The number of parts into which each row's context is split, so that few rows still fill the GPU."""
    num_splits = 1
    while num_splits < _MAX_SPLITS and 2 * num_splits * num_programs <= _ENOUGH_PROGRAMS:
        num_splits *= 2
    return num_splits


def _next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()
