"""A prefill pass on CUDA, recorded for a few numbers of tokens and replayed: one call of the driver, not hundreds.

Rollouts come back from their tools at all times with a few tokens each, so there is hardly a run of decode steps
without a prefill before it. Launched kernel by kernel, it would cost more than the steps themselves.

Invariant: a recorded pass reads nothing but its own buffers. Tokens beyond those of the pass are padding, which stores
nothing and which nobody reads; tiles beyond are empty.

Suffixes as in `architecture`; X: several columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rstar2.engine.embedded.architecture import ForwardBatch, Kernels, forward
from rstar2.engine.embedded.options import PREFILL_TILE, EngineLimits
from rstar2.engine.embedded.scheduler import PrefillChunk
from rstar2.engine.embedded.weights import Weights

_LEAST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class _Recorded:
    integers_X: Tensor
    """Ids, positions, slots and tiles, one behind the other, as `_integers` lays them out."""
    graph: torch.cuda.CUDAGraph


class RecordedPrefill:
    def __init__(self, weights: Weights, kernels: Kernels, limits: EngineLimits) -> None:
        self._weights, self._kernels, self._limits = weights, kernels, limits
        num_rows = min(limits.max_running, limits.max_prefill_tokens)
        shape = (num_rows, limits.max_blocks_per_sequence)
        self._table_RP = torch.zeros(shape, dtype=torch.int32, device=weights.device)
        self._recorded: dict[int, _Recorded] = {}
        self._pool: Any = None

    def run(self, chunks: Sequence[PrefillChunk]) -> None:
        num_tokens = sum(chunk.end - chunk.start for chunk in chunks)
        size = _LEAST_TOKENS
        while size < num_tokens:
            size *= 2
        recorded = self._recorded.get(size) or self._record(size)
        table = _table(chunks, self._limits.block_size)
        integers = self._integers(chunks, table, size)
        both = torch.empty(integers.size + table.size, dtype=torch.int64, pin_memory=True)
        both.numpy()[: integers.size] = integers
        both.numpy()[integers.size :] = table.ravel()
        both_X = both.to(self._weights.device, non_blocking=True)
        recorded.integers_X.copy_(both_X[: integers.size])
        self._table_RP[: table.shape[0], : table.shape[1]].copy_(both_X[integers.size :].view(table.shape))
        recorded.graph.replay()

    def _integers(self, chunks: Sequence[PrefillChunk], table: "np.ndarray[Any, Any]", size: int) -> Any:
        block_size = self._limits.block_size
        counts = [chunk.end - chunk.start for chunk in chunks]
        ends = np.cumsum(counts)
        rows = np.repeat(np.arange(len(chunks)), counts)
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        slots = table[rows, positions // block_size] * block_size + positions % block_size
        integers = np.zeros(3 * size + 3 * self._num_tiles(size), dtype=np.int64)
        ids_positions_slots = integers[: 3 * size].reshape(3, size)
        ids_positions_slots[0, : len(rows)] = [
            token_id for chunk in chunks for token_id in chunk.sequence.token_ids[chunk.start : chunk.end]
        ]
        ids_positions_slots[1:] = -1
        ids_positions_slots[1, : len(rows)] = positions
        ids_positions_slots[2, : len(rows)] = slots
        tiles = [
            (row, start, end)
            for row, (count, end) in enumerate(zip(counts, ends.tolist(), strict=True))
            for start in range(end - count, end, PREFILL_TILE)
        ]
        integers[3 * size : 3 * size + 3 * len(tiles)] = np.array(tiles).ravel()
        return integers

    def _num_tiles(self, size: int) -> int:
        """At most: each row has whole tiles and one that is not."""
        return size // PREFILL_TILE + min(size, len(self._table_RP))

    def _record(self, size: int) -> _Recorded:
        num_tiles = self._num_tiles(size)
        integers_X = torch.zeros(3 * size + 3 * num_tiles, dtype=torch.int64, device=self._weights.device)
        token_ids_T, positions_T, slots_T = integers_X[: 3 * size].view(3, size)
        positions_T.fill_(-1)
        batch = ForwardBatch(positions_T, slots_T, self._table_RP, tiles=integers_X[3 * size :].view(-1, 3))
        stream: Any = torch.cuda.Stream(self._weights.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            forward(self._weights, self._kernels, token_ids_T, batch)  # compiles kernels, and makes libraries ready
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: a trainer may allocate from its own thread at the same time.
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
            forward(self._weights, self._kernels, token_ids_T, batch)
        self._pool = self._pool or graph.pool()
        self._recorded[size] = _Recorded(integers_X, graph)
        return self._recorded[size]


def _table(chunks: Sequence[PrefillChunk], block_size: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The blocks of each chunk's sequence, as far as the chunk looks."""
    table = np.zeros((len(chunks), max(-(-chunk.end // block_size) for chunk in chunks)), dtype=np.int64)
    for row, chunk in enumerate(chunks):
        blocks = chunk.sequence.blocks[: table.shape[1]]
        table[row, : len(blocks)] = blocks
    return table
