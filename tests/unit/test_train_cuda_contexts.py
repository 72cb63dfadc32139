"""What a batch-invariant pass attends to, without a GPU: tiles and contexts against the sequences themselves."""

import pytest
import torch

from rstar2.engine.embedded.invariant import queries_per_tile
from rstar2.engine.embedded.weights import Shape
from rstar2.train.cuda.operations import Contexts
from rstar2.train.learning.forward import Family, Pack

CPU = torch.device("cpu")


def shape_of(num_heads: int, num_kv_heads: int) -> Shape:
    return Shape(num_heads, num_kv_heads, head_dim=16, vocab_size=99, context_tokens=512, norm_eps=1e-6)


@pytest.mark.parametrize(("num_heads", "expected"), [(2, 16), (6, 4), (14, 2), (40, 1)])
def test_a_tile_has_sixteen_rows_of_query_heads_or_one_query(num_heads: int, expected: int) -> None:
    assert queries_per_tile(shape_of(num_heads, 2)) == expected


def test_every_query_has_one_tile_and_the_context_of_its_own_sequence() -> None:
    sequences = [
        [[*range(10), *range(50, 50 + length)] for length in (3, 20, 1)],
        [[*range(100, 104), *range(200, 200 + length)] for length in (7, 5)],
        [[*range(300, 333)]],
    ]
    families = [
        Family(members, [[False] + [True] * (len(ids) - 1) for ids in members], num_shared)
        for members, num_shared in zip(sequences, (10, 4, 0), strict=True)
    ]
    pack = Pack.of_families(families, CPU)
    shape = shape_of(6, 2)
    contexts = Contexts.of(pack.spans, shape, CPU)
    token_ids, positions = pack.token_ids_T.tolist(), pack.positions_T.tolist()
    seen: list[int] = []
    read: set[tuple[int, ...]] = set()
    for row, first, end in contexts.tiles.tolist():
        for token in range(first, min(first + queries_per_tile(shape), end)):
            seen.append(token)
            context = contexts.table_RP[row, : positions[token] + 1].tolist()
            assert context[-1] == token, "a query's own place is the last of its context"
            read.add(tuple(token_ids[place] for place in context))
    assert sorted(seen) == list(range(len(token_ids)))
    prefixes = {tuple(ids[: end + 1]) for members in sequences for ids in members for end in range(len(ids))}
    assert read == prefixes
    assert contexts.slots_T.tolist() == list(range(len(token_ids)))
