"""Every sequence once, within its limit, and for many ranks as much on each as on the next."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.train.learning.packing import pack
from rstar2.train.sharding.ranks import ALONE, Ranks

pytestmark = pytest.mark.unit

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def size(indices: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in indices)


@given(lengths=LENGTHS, max_tokens=st.integers(1, 200), num_ranks=st.integers(1, 7))
def test_every_sequence_is_on_one_rank_and_all_ranks_have_as_many_packs(
    lengths: list[int], max_tokens: int, num_ranks: int
) -> None:
    packs = pack(lengths, max_tokens, num_ranks)
    assert all(packs)
    assert all(len(indices) == 1 or size(indices, lengths) <= max_tokens for indices in packs)
    shares = [Ranks(rank, num_ranks).share(packs) for rank in range(num_ranks)]
    assert len({len(share) for share in shares}) == 1
    taken = [index for share in shares for indices in share for index in indices]
    assert sorted(taken) == list(range(len(lengths)))


def test_ranks_get_even_packs_where_one_process_takes_as_few_as_it_can() -> None:
    lengths = [10] * 8
    assert pack(lengths, 100) == [list(range(8))]
    assert [size(indices, lengths) for indices in pack(lengths, 100, 4)] == [20] * 4
    assert [size(indices, lengths) for indices in pack(lengths, 30, 2)] == [20] * 4
    assert pack([50, 10, 10, 10, 10, 10], 100, 2) == [[0], [1, 2, 3, 4, 5]]


def test_alone_a_rank_has_it_all_and_tells_nobody() -> None:
    assert ALONE.share([[1], [0, 2]]) == [[1], [0, 2]]
    assert ALONE.total({"loss": 0.5}) == {"loss": 0.5}
    ALONE.wait()
    assert [Ranks(rank, 3).share([[0], [1], [2], [3]]) for rank in range(3)] == [[[0], [3]], [[1], []], [[2], []]]
