"""However tokens are put together, each sees its own past, all of it, once and in order."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.engine.embedded.architecture import ForwardBatch, PrefillSpan
from rstar2.engine.embedded.contexts_cpu import CONTEXT_TILE, Context, ContextPlanner, group_by_prefix
from rstar2.engine.embedded.weights import Shape

pytestmark = pytest.mark.property

BLOCK_SIZE = 16
NUM_KV_HEADS = 2
SHAPE = Shape(num_heads=6, num_kv_heads=NUM_KV_HEADS, head_dim=8, vocab_size=1, context_tokens=1024, norm_eps=1e-5)
PLANNER = ContextPlanner(SHAPE, BLOCK_SIZE, torch.float32)
Slot = tuple[str, int, int]
"""Of the cache: keys or values, the head, and the block times the block size plus the offset."""


def slots_of(pieces: torch.Tensor) -> list[Slot]:
    slots: list[Slot] = []
    for piece in pieces.tolist():
        block, rest = divmod(piece, 2 * NUM_KV_HEADS)
        what, head = divmod(rest, NUM_KV_HEADS)
        slots += [("kv"[what], head, block * BLOCK_SIZE + offset) for offset in range(BLOCK_SIZE)]
    return slots


def seen_by(context: Context) -> dict[int, list[list[list[Slot]]]]:
    """For each token and head: the slots of the keys that it sees, in order, and those of the values."""
    tokens = context.token_X.tolist()
    num_owners = 1 if context.is_span else len(tokens)
    num_shared_pieces = 2 * NUM_KV_HEADS * context.num_shared_tokens // BLOCK_SIZE
    shared = slots_of(context.pieces[:num_shared_pieces])
    own = slots_of(context.pieces[num_shared_pieces:])
    width = len(own) // (NUM_KV_HEADS * num_owners * 2)
    group_size = SHAPE.num_heads // NUM_KV_HEADS
    seen: dict[int, list[list[list[Slot]]]] = {}
    for place, token in enumerate(tokens):
        heads = []
        for head in range(NUM_KV_HEADS):
            owner = head if context.is_span else head * num_owners + place
            row = context.mask_XML[0, place * group_size] if context.is_span else context.mask_XML[owner, 0]
            sides = []
            for side in range(2):
                start = (2 * head + side) * context.num_shared_tokens
                own_start = (2 * owner + side) * width
                visible = [
                    slot for slot, m in zip(own[own_start : own_start + width], row.tolist(), strict=True) if m == 0
                ]
                sides.append(shared[start : start + context.num_shared_tokens] + visible)
            heads.append(sides)
        seen[token] = heads
    return seen


def make_tables(rng: random.Random, num_rows: int, num_columns: int) -> torch.Tensor:
    """Rows that leave one of few common beginnings somewhere."""
    beginnings = [[rng.randrange(10_000) for _ in range(num_columns)] for _ in range(2)]
    rows = []
    for _ in range(num_rows):
        beginning = rng.choice(beginnings)
        num_common = rng.randint(0, num_columns)
        rows.append(beginning[:num_common] + [rng.randrange(10_000) for _ in range(num_columns - num_common)])
    return torch.tensor(rows, dtype=torch.int32)


def assert_each_sees_its_past(batch: ForwardBatch, row_by_token: dict[int, int]) -> None:
    seen: dict[int, list[list[list[Slot]]]] = {}
    for context in PLANNER.plan(batch):
        part = seen_by(context)
        assert not part.keys() & seen.keys()
        seen |= part
    assert seen.keys() == row_by_token.keys()
    for token, row in row_by_token.items():
        position = int(batch.positions_T[token])
        table = batch.table_RP[row].tolist()
        past = [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(position + 1)]
        for head in range(NUM_KV_HEADS):
            assert seen[token][head] == [[(side, head, slot) for slot in past] for side in "kv"]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), num_rows=st.integers(1, 24), num_columns=st.integers(1, 20))
def test_decoding_rows(seed: int, num_rows: int, num_columns: int) -> None:
    rng = random.Random(seed)
    table = make_tables(rng, num_rows, num_columns)
    positions = torch.tensor([rng.randint(-1, num_columns * BLOCK_SIZE - 1) for _ in range(num_rows)])
    alive = {row: row for row in range(num_rows) if positions[row] >= 0}  # the others have ended, and see nothing
    assert_each_sees_its_past(ForwardBatch(positions, positions, table), alive)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), num_rows=st.integers(1, 10), num_columns=st.integers(6, 20))
def test_prompts_long_and_short(seed: int, num_rows: int, num_columns: int) -> None:
    rng = random.Random(seed)
    spans: list[PrefillSpan] = []
    positions: list[int] = []
    row_by_token: dict[int, int] = {}
    for row in range(num_rows):
        num_tokens = rng.choice((1, 5, 16, 17, 70))
        span = PrefillSpan(
            len(positions), len(positions) + num_tokens, rng.randint(0, num_columns * BLOCK_SIZE - num_tokens)
        )
        spans.append(span)
        row_by_token |= dict.fromkeys(range(span.start, span.end), row)
        positions += range(span.position, span.position + num_tokens)
    position_T = torch.tensor([*positions, -1, -1])  # padding
    batch = ForwardBatch(position_T, position_T, make_tables(rng, num_rows, num_columns), tuple(spans))
    assert_each_sees_its_past(batch, row_by_token)


def test_a_group_of_rollouts_reads_its_prompt_once() -> None:
    num_tiles, num_rollouts = 3, 16
    blocks_per_tile = CONTEXT_TILE // BLOCK_SIZE
    prompts = [[number * 100 + block for block in range(num_tiles * blocks_per_tile)] for number in range(2)]
    table = torch.tensor([prompts[row % 2] + [1000 + row] for row in range(2 * num_rollouts)], dtype=torch.int32)
    groups = group_by_prefix(table.numpy(), [num_tiles] * len(table), blocks_per_tile)
    assert sorted((sorted(group.rows), group.num_tiles) for group in groups) == [
        (list(range(first, 2 * num_rollouts, 2)), num_tiles) for first in range(2)
    ]
