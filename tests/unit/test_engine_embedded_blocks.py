"""The cache's bookkeeping: whose blocks, which prefixes, who gives way first."""

import pytest

from rstar2.engine.embedded.blocks import BlockManager

pytestmark = pytest.mark.unit

SIZE = 4


def fill(blocks: BlockManager, token_ids: list[int]) -> list[int]:
    """The blocks of a sequence that was computed and has left."""
    own = blocks.allocate(blocks.num_blocks_for(len(token_ids)))
    blocks.offer(token_ids, own, len(token_ids))
    blocks.free(own)
    blocks.check()
    return own


def test_a_prefix_is_found_up_to_its_last_full_block() -> None:
    blocks = BlockManager(8, SIZE)
    own = fill(blocks, list(range(10)))
    assert blocks.match(list(range(20)), 20) == own[:2]
    assert blocks.match(list(range(20)), 7) == own[:1]
    assert blocks.match([0, 1, 2, 9, 4, 5, 6, 7], 8) == []
    assert (blocks.num_free, blocks.num_cached) == (8, 2)


def test_the_same_ids_after_another_start_are_another_prefix() -> None:
    blocks = BlockManager(8, SIZE)
    fill(blocks, [1, 1, 1, 1, 7, 7, 7, 7])
    other = fill(blocks, [2, 2, 2, 2, 7, 7, 7, 7])
    assert blocks.match([2, 2, 2, 2, 7, 7, 7, 7], 8) == other
    assert blocks.match([7, 7, 7, 7], 4) == []


def test_a_prefix_computed_twice_is_found_once() -> None:
    blocks = BlockManager(8, SIZE)
    first, second = blocks.allocate(2), blocks.allocate(2)
    for own in (first, second):
        blocks.offer(list(range(8)), own, 8)
    assert blocks.match(list(range(8)), 8) == first
    blocks.free(second)
    blocks.free(first)
    blocks.check()
    assert (blocks.num_free, blocks.num_cached) == (8, 2)


def test_the_least_recently_used_goes_first_and_ends_before_starts() -> None:
    blocks = BlockManager(4, SIZE)
    old, new = fill(blocks, [1] * 8), fill(blocks, [2] * 8)
    assert blocks.allocate(1) == [old[1]]
    assert blocks.match([1] * 8, 8) == [old[0]]
    assert blocks.match([2] * 8, 8) == new


def test_what_a_session_may_come_back_for_goes_last() -> None:
    blocks = BlockManager(4, SIZE)
    kept_blocks = fill(blocks, [1] * 8)
    contents = blocks.keep(kept_blocks)
    blocks.take(kept_blocks)
    blocks.free(kept_blocks)
    fill(blocks, [2] * 8)
    taken = blocks.allocate(2)
    assert blocks.match([1] * 8, 8) == kept_blocks
    blocks.unkeep(contents)
    blocks.check()
    blocks.free(taken)
    assert blocks.num_free == 4


def test_new_weights_make_every_prefix_unknown_and_take_nobodys_blocks() -> None:
    blocks = BlockManager(4, SIZE)
    fill(blocks, [1] * 8)
    mine = blocks.allocate(1)
    blocks.offer([2] * 4, mine, 4)
    blocks.drop_cache()
    blocks.check()
    assert blocks.match([1] * 8, 8) == blocks.match([2] * 4, 4) == []
    assert (blocks.num_free, blocks.num_cached, blocks.epoch) == (3, 0, 1)
    blocks.free(mine)
    assert blocks.num_free == 4


def test_freeing_twice_is_a_broken_invariant() -> None:
    blocks = BlockManager(2, SIZE)
    own = blocks.allocate(1)
    blocks.free(own)
    with pytest.raises(AssertionError, match="freed twice"):
        blocks.free(own)
