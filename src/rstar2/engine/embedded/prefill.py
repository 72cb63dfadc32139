"""Prefill passes: their tokens, positions, slots and blocks; on CUDA the passes run as recorded graphs.

A CUDA graph is recorded for a few numbers of tokens and replayed: one call of the driver, not hundreds. Rollouts return
from their tools at all times with a few tokens each, so nearly every run of decode steps has a prefill before it.
Launched kernel by kernel, it would cost more than the steps themselves.

Invariant: a recorded pass reads nothing but its own buffers. Tokens beyond those of the pass are padding, which stores
nothing and is never read; further tiles are empty.

Suffixes are those of `architecture`; X: several columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rstar2.engine.embedded.architecture import ForwardBatch, Kernels, PrefillSpan, forward
from rstar2.engine.embedded.invariant import queries_per_tile
from rstar2.engine.embedded.options import PREFILL_TILE, EngineLimits
from rstar2.engine.embedded.scheduler import PrefillChunk
from rstar2.engine.embedded.weights import Weights

_LEAST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class PrefillLayout:
    """The chunks of a pass, concatenated."""

    token_ids: list[int]
    spans: tuple[PrefillSpan, ...]
    positions: "np.ndarray[Any, np.dtype[np.int64]]"
    slots: "np.ndarray[Any, np.dtype[np.int64]]"
    table: "np.ndarray[Any, np.dtype[np.int64]]"
    """The blocks of each chunk's sequence, up to the end of the chunk."""

    @classmethod
    def of(cls, chunks: Sequence[PrefillChunk], block_size: int) -> Self:
        token_ids: list[int] = []
        spans: list[PrefillSpan] = []
        table = np.zeros((len(chunks), max(-(-chunk.end // block_size) for chunk in chunks)), dtype=np.int64)
        for row, chunk in enumerate(chunks):
            start = len(token_ids)
            token_ids += chunk.sequence.token_ids[chunk.start : chunk.end]
            spans.append(PrefillSpan(start, len(token_ids), chunk.start))
            blocks = chunk.sequence.blocks[: table.shape[1]]
            table[row, : len(blocks)] = blocks
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        rows = np.repeat(np.arange(len(chunks)), [chunk.end - chunk.start for chunk in chunks])
        slots = table[rows, positions // block_size] * block_size + positions % block_size
        return cls(token_ids, tuple(spans), positions, slots, table)


@dataclass(frozen=True, slots=True)
class _Recorded:
    integers_X: Tensor
    """Ids, positions, slots and tiles, concatenated by `_integers`."""
    graph: torch.cuda.CUDAGraph


class RecordedPrefill:
    def __init__(self, weights: Weights, kernels: Kernels, limits: EngineLimits) -> None:
        self._weights, self._kernels, self._limits = weights, kernels, limits
        self._tile = queries_per_tile(weights.shape) if limits.batch_invariant else PREFILL_TILE
        num_rows = min(limits.max_running, limits.max_prefill_tokens)
        shape = (num_rows, limits.max_blocks_per_sequence)
        self._table_RP = torch.zeros(shape, dtype=torch.int32, device=weights.device)
        self._recorded: dict[int, _Recorded] = {}
        self._pool: Any = None

    def run(self, chunks: Sequence[PrefillChunk]) -> None:
        layout = PrefillLayout.of(chunks, self._limits.block_size)
        size = _recorded_size(len(layout.token_ids))
        recorded = self._recorded.get(size) or self._record(size)
        integers, table = self._integers(layout, size), layout.table
        both = torch.empty(integers.size + table.size, dtype=torch.int64, pin_memory=True)
        both.numpy()[: integers.size] = integers
        both.numpy()[integers.size :] = table.ravel()
        both_X = both.to(self._weights.device, non_blocking=True)
        recorded.integers_X.copy_(both_X[: integers.size])
        self._table_RP[: table.shape[0], : table.shape[1]].copy_(both_X[integers.size :].view(table.shape))
        recorded.graph.replay()

    def record_all(self) -> None:
        """Records passes of all sizes now rather than at first use."""
        size, largest = _LEAST_TOKENS, _recorded_size(self._limits.max_prefill_tokens)
        while size <= largest:
            if size not in self._recorded:
                self._record(size)
            size *= 2

    def hidden_states(self, chunks: Sequence[PrefillChunk]) -> Tensor:
        """Runs a pass that is not recorded, whose output can be kept."""
        layout = PrefillLayout.of(chunks, self._limits.block_size)
        size = len(layout.token_ids)
        integers_X = torch.from_numpy(self._integers(layout, size)).to(self._weights.device)
        token_ids_T, positions_T, slots_T = integers_X[: 3 * size].view(3, size)
        table_RP = torch.from_numpy(layout.table.astype(np.int32)).to(self._weights.device)
        batch = ForwardBatch(positions_T, slots_T, table_RP, tiles=integers_X[3 * size :].view(-1, 3))
        return forward(self._weights, self._kernels, token_ids_T, batch)

    def _integers(self, layout: PrefillLayout, size: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
        num_tokens = len(layout.token_ids)
        integers = np.zeros(3 * size + 3 * self._num_tiles(size), dtype=np.int64)
        ids_positions_slots = integers[: 3 * size].reshape(3, size)
        ids_positions_slots[0, :num_tokens] = layout.token_ids
        ids_positions_slots[1:] = -1
        ids_positions_slots[1, :num_tokens] = layout.positions
        ids_positions_slots[2, :num_tokens] = layout.slots
        tiles = query_tiles([(span.start, span.end) for span in layout.spans], self._tile)
        integers[3 * size : 3 * size + tiles.size] = tiles.ravel()
        return integers

    def _num_tiles(self, size: int) -> int:
        """An upper bound of the tiles: each row has full tiles and one that is not full."""
        return size // self._tile + min(size, len(self._table_RP))

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
        release_eager_memory()
        graph = torch.cuda.CUDAGraph()
        # thread_local: a trainer may allocate from its own thread at the same time.
        with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
            forward(self._weights, self._kernels, token_ids_T, batch)
        self._pool = self._pool or graph.pool()
        self._recorded[size] = _Recorded(integers_X, graph)
        return self._recorded[size]


def _recorded_size(num_tokens: int) -> int:
    size = _LEAST_TOKENS
    while size < num_tokens:
        size *= 2
    return size


def release_eager_memory() -> None:
    """Releases the memory that the pass before a recording left in the allocator: a recorded pass has its own, and
    nothing else would use that of the side stream."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def query_tiles(spans: Sequence[tuple[int, int]], num_queries: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Tiles of query tokens, one span of tokens for each row of the table: row, first token, and last token + 1 of the
    span."""
    tiles = [(row, start, end) for row, (first, end) in enumerate(spans) for start in range(first, end, num_queries)]
    return np.array(tiles, np.int64).reshape(-1, 3)
