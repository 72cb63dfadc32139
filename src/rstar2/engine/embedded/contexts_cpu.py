"""Groups a pass's tokens by the pieces of the cache that they attend to together, on a CPU.

Invariant: every token but padding is in exactly one context and sees its own past there, itself included, and nothing
else. The grouping changes how often the cache is read, and no bit of what a token sees: see `kernels_cpu`.

Tokens of a long span are cut into parts, each a matrix of queries. All others (decoding rows, and the tokens of short
spans) have a matrix each. Rows with a common prefix, such as the rollouts of a group, read it once. The remaining
contexts of a group have about one length, so the keys and values gathered for it are still in the processor's cache
when they are read.

Suffixes are those of `architecture`; X: several heads, of one token each or of a part of a span, M: queries of one of
them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded.architecture import ForwardBatch, PrefillSpan
from rstar2.engine.embedded.weights import Shape

ROW_QUANTUM = 4
"""A matrix product's row is the same in any number of rows that is a multiple of this."""
CONTEXT_TILE = 64
"""Tokens of context that one product sums over; a common prefix is shared in full tiles. MKL sums up to 192 at once."""
_MIN_SHARING_ROWS = 4
"""The fewest rows that share the read of a common tile: a group costs a dozen calls a layer, too many for fewer
rows."""
_GROUP_BYTES = 2 << 20
"""Keys and values that a group of tokens attends to: about what the cores' own caches hold."""
_SPAN_PART = 64
"""Tokens of a span that attend together: their scores stay small, and few of them are masked."""
_SHORT_SPAN = 16
"""Spans of up to this many tokens are faster in a group with others than alone."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    rows: list[int]
    num_tiles: int
    """Tiles of the cache that all rows begin with."""


def group_by_prefix(
    table_RP: NDArray[np.int32], num_past_tiles_R: Sequence[int], blocks_per_tile: int
) -> list[PrefixGroup]:
    """Groups rows by their common blocks; `num_past_tiles_R` counts each row's tiles that end before its own token.

    Every row is in exactly one group, and the common prefix is in its past, so that it needs no mask."""
    groups: list[PrefixGroup] = []
    candidates = [PrefixGroup(list(range(len(table_RP))), 0)]
    while candidates:
        group = candidates.pop()
        tile = slice(group.num_tiles * blocks_per_tile, (group.num_tiles + 1) * blocks_per_tile)
        rows_by_blocks: dict[bytes, list[int]] = defaultdict(list)
        rest: list[int] = []
        for row in group.rows:
            if num_past_tiles_R[row] > group.num_tiles:
                rows_by_blocks[table_RP[row, tile].tobytes()].append(row)
            else:
                rest.append(row)
        for rows in rows_by_blocks.values():
            if len(rows) >= _MIN_SHARING_ROWS:
                candidates.append(PrefixGroup(rows, group.num_tiles + 1))
            else:
                rest += rows
        if rest:
            groups.append(PrefixGroup(rest, group.num_tiles))
    return groups


@dataclass(frozen=True, slots=True)
class Context:
    token_X: Tensor
    """Indices of the tokens in the pass."""
    is_span: bool
    """Whether these are consecutive tokens of one sequence, whose queries of a head are one matrix; otherwise each
    token has its own."""
    pieces: Tensor
    """Pieces of the cache, by block and head. First the common prefix: of each head in order its keys, then its values;
    then what follows it, likewise of each head and token in order. Threads take equal shares of what is gathered and
    of the products that read it: so a core reads about what it has gathered itself."""
    num_shared_tokens: int
    """Length of the common prefix, in full tiles."""
    mask_XML: Tensor
    """The mask of what follows the common prefix: 0 where a query may attend, minus infinity elsewhere."""


@dataclass(frozen=True, slots=True)
class ContextPlanner:
    shape: Shape
    block_size: int
    dtype: torch.dtype

    def plan(self, batch: ForwardBatch) -> Iterator[Context]:
        position_T = batch.positions_T
        if not batch.spans:
            alive_X = (position_T >= 0).nonzero()[:, 0]
            yield from self._groups(alive_X, position_T[alive_X], batch.table_RP[alive_X])
            return
        short_tokens: list[int] = []
        short_rows: list[int] = []
        for row, span in enumerate(batch.spans):
            if span.end - span.start <= _SHORT_SPAN:
                short_tokens += range(span.start, span.end)
                short_rows += [row] * (span.end - span.start)
            else:
                yield from self._parts(span, position_T, batch.table_RP[row : row + 1])
        if short_tokens:
            token_X = torch.tensor(short_tokens)
            yield from self._groups(token_X, position_T[token_X], batch.table_RP[torch.tensor(short_rows)])

    def _groups(self, token_X: Tensor, position_X: Tensor, table_XP: Tensor) -> Iterator[Context]:
        """Groups of tokens, the longest contexts first. A group takes as many tokens as fit, each padded to the blocks
        of its first."""
        positions = position_X.tolist()
        num_past_tiles = [position // CONTEXT_TILE for position in positions]
        blocks_per_tile = CONTEXT_TILE // self.block_size
        for group in group_by_prefix(table_XP.numpy(), num_past_tiles, blocks_per_tile):
            members = sorted(group.rows, key=lambda member: -positions[member])
            num_shared_blocks, start = group.num_tiles * blocks_per_tile, 0
            while start < len(members):
                num_blocks = positions[members[start]] // self.block_size + 1
                num_members = max(1, _GROUP_BYTES // ((num_blocks - num_shared_blocks) * self._block_bytes))
                member_X = torch.tensor(members[start : start + num_members])
                mask_XL = self._mask(position_X[member_X], num_shared_blocks, num_blocks)
                shared = self._pieces(table_XP[member_X[:1], :num_shared_blocks])
                own = self._pieces(table_XP[member_X, num_shared_blocks:num_blocks])
                yield Context(
                    token_X=token_X[member_X],
                    is_span=False,
                    pieces=torch.cat((shared, own)),
                    num_shared_tokens=group.num_tiles * CONTEXT_TILE,
                    mask_XML=mask_XL.repeat(self.shape.num_kv_heads, 1)[:, None],
                )
                start += num_members

    def _parts(self, span: PrefillSpan, position_T: Tensor, table_1P: Tensor) -> Iterator[Context]:
        group_size = self.shape.num_heads // self.shape.num_kv_heads
        for start in range(span.start, span.end, _SPAN_PART):
            end = min(start + _SPAN_PART, span.end)
            num_blocks = (span.position + end - 1 - span.start) // self.block_size + 1
            mask_TL = self._mask(position_T[start:end], 0, num_blocks)
            yield Context(
                token_X=torch.arange(start, end),
                is_span=True,
                pieces=self._pieces(table_1P[:, :num_blocks]),
                num_shared_tokens=0,
                mask_XML=pad_rows(mask_TL.repeat_interleave(group_size, dim=0))[None],
            )

    def _mask(self, position_X: Tensor, first_block: int, end_block: int) -> Tensor:
        position_L = torch.arange(first_block * self.block_size, end_block * self.block_size)
        is_future_XL = position_L > position_X[:, None]
        return torch.zeros(is_future_XL.shape, dtype=self.dtype).masked_fill_(is_future_XL, -torch.inf)

    def _pieces(self, table_XP: Tensor) -> Tensor:
        num_pieces = 2 * self.shape.num_kv_heads  # in a block
        piece_K121 = torch.arange(num_pieces).view(2, -1).t()[:, None, :, None]
        return (table_XP.long()[:, None] * num_pieces + piece_K121).flatten()

    @property
    def _block_bytes(self) -> int:
        return 2 * self.shape.num_kv_heads * self.block_size * self.shape.head_dim * self.dtype.itemsize


def pad_rows(matrices: Tensor) -> Tensor:
    num_rows = matrices.shape[-2]
    num_padding = -num_rows % ROW_QUANTUM
    return F.pad(matrices, (0, 0, 0, num_padding)) if num_padding else matrices
