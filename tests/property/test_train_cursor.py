"""The order of problems, and the cutting of a step into micro-batches: nothing is skipped, nothing comes twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.train.learning.packing import pack
from rstar2.train.seeds import Cursor, take

pytestmark = pytest.mark.property


@given(st.integers(1, 9), st.lists(st.integers(0, 20), max_size=8), st.text(max_size=4))
def test_every_problem_comes_once_an_epoch_however_the_takes_are_cut(
    num_problems: int, sizes: list[int], stream: str
) -> None:
    cursor, taken = Cursor(), list[int]()
    for size in sizes:
        piece, cursor = take(cursor, size, num_problems, stream)
        assert len(piece) == size
        taken += piece
    assert taken == take(Cursor(), sum(sizes), num_problems, stream)[0], "the cut changes the order"
    for number in range(0, len(taken) - num_problems + 1, num_problems):
        assert sorted(taken[number : number + num_problems]) == list(range(num_problems))
    assert (cursor.epoch, cursor.position) == divmod(len(taken), num_problems)


def test_epochs_and_streams_have_orders_of_their_own() -> None:
    orders = [tuple(take(Cursor(epoch), 20, 20, stream)[0]) for epoch in range(3) for stream in "ab"]
    assert len(set(orders)) == 6


@given(st.lists(st.integers(1, 30), max_size=25), st.integers(1, 40))
def test_micro_batches_hold_every_sequence_once_within_the_limit(lengths: list[int], max_tokens: int) -> None:
    batches = pack(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= max_tokens
    assert batches == pack(list(lengths), max_tokens)
