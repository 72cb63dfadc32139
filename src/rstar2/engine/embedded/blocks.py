"""The blocks of the KV cache: their owners, and the prefix cache.

Invariants: every block is blank, unused but cached, or referenced, and never two of these; a block's content is
found by the exact ids of the full prefix that ends with it, so two prefixes are never confused.

A cached block without references stays until its room is needed. Blocks of sessions that may continue (`keep`) are
evicted last; otherwise the least recently used goes first, and of one sequence the end before the start.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

_ROOT = 0
_Key = tuple[int, tuple[int, ...]]
"""The key of a block's content: the number of the preceding content, and the block's own ids."""
Offered = tuple[int, int]
"""How many blocks of a sequence were offered to the prefix cache, and the number of the last one's content."""
NOTHING_OFFERED: Offered = (0, _ROOT)


class BlockManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.epoch = 0
        """Grows when the weights change: older blocks no longer enter the prefix cache."""
        self._num_references = [0] * num_blocks
        self._blank = deque(range(num_blocks))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._block_by_key: dict[_Key, int] = {}
        self._key_by_block: dict[int, _Key] = {}
        self._content_by_block: dict[int, int] = {}
        self._block_by_content: dict[int, int] = {}
        self._num_keeping_sessions: dict[int, int] = {}
        self._last_content = _ROOT

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return, including cached but unused ones."""
        return len(self._blank) + len(self._idle) + len(self._kept)

    @property
    def num_cached(self) -> int:
        return len(self._key_by_block)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def match(self, token_ids: Sequence[int], max_tokens: int) -> list[int]:
        """The cached blocks of the longest known prefix of at most `max_tokens`; no reference is taken."""
        blocks: list[int] = []
        parent = _ROOT
        for start in range(0, max_tokens - self.block_size + 1, self.block_size):
            block = self._block_by_key.get((parent, tuple(token_ids[start : start + self.block_size])))
            if block is None:
                break
            blocks.append(block)
            parent = self._content_by_block[block]
        return blocks

    def offered(self, matched: Sequence[int]) -> Offered:
        """The `Offered` of a sequence that starts with these cached blocks, none of which need be offered again."""
        return (len(matched), self._content_by_block[matched[-1]]) if matched else NOTHING_OFFERED

    def num_unused(self, blocks: Iterable[int]) -> int:
        """How many of these blocks `take` would remove from the free blocks."""
        return sum(self._num_references[block] == 0 for block in blocks)

    def take(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self._num_references[block] == 0:
                self._kept.pop(block, None)
                self._idle.pop(block, None)
            self._num_references[block] += 1

    def allocate(self, num_blocks: int) -> list[int]:
        assert num_blocks <= self.num_free, f"{num_blocks} blocks asked for, {self.num_free} free"
        blocks: list[int] = []
        for _ in range(num_blocks):
            if self._blank:
                block = self._blank.popleft()
            else:
                block, _ = (self._idle or self._kept).popitem(last=False)
                self._forget_content(block)
            self._num_references[block] = 1
            blocks.append(block)
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Drops one reference to each. The end of a sequence is reused before its start."""
        num_references = self._num_references
        for block in reversed(blocks):
            num_references[block] -= 1
            assert num_references[block] >= 0, f"block {block} was freed twice"
            if num_references[block] == 0:
                content = self._content_by_block.get(block)
                if content is None:
                    self._blank.append(block)
                else:
                    (self._kept if content in self._num_keeping_sessions else self._idle)[block] = None

    def offer(
        self, token_ids: Sequence[int], blocks: Sequence[int], num_computed: int, offered: Offered = NOTHING_OFFERED
    ) -> Offered:
        """Enters the full blocks among the first `num_computed` tokens, except those that were `offered` before, into
        the prefix cache. Where another block already holds the same prefix, that one stays in it."""
        num_offered, parent = offered
        num_full = num_computed // self.block_size
        for index in range(num_offered, num_full):
            start = index * self.block_size
            key = (parent, tuple(token_ids[start : start + self.block_size]))
            block = self._block_by_key.get(key)
            if block is None:
                block = blocks[index]
                self._forget_content(block)
                self._last_content += 1
                self._block_by_key[key] = block
                self._key_by_block[block] = key
                self._content_by_block[block] = self._last_content
                self._block_by_content[self._last_content] = block
            parent = self._content_by_block[block]
        return max(num_full, num_offered), parent

    def _forget_content(self, block: int) -> None:
        key = self._key_by_block.pop(block, None)
        if key is not None:
            content = self._content_by_block.pop(block)
            del self._block_by_key[key], self._block_by_content[content]
            self._num_keeping_sessions.pop(content, None)

    def keep(self, blocks: Iterable[int]) -> list[int]:
        """Marks blocks whose session may continue, so that they are evicted last. Returns the argument for `unkeep`."""
        contents = [self._content_by_block[block] for block in blocks if block in self._content_by_block]
        for content in contents:
            self._num_keeping_sessions[content] = self._num_keeping_sessions.get(content, 0) + 1
        return contents

    def unkeep(self, contents: Iterable[int]) -> None:
        for content in contents:
            if content not in self._num_keeping_sessions:  # evicted meanwhile
                continue
            self._num_keeping_sessions[content] -= 1
            if self._num_keeping_sessions[content] == 0:
                del self._num_keeping_sessions[content]
                block = self._block_by_content[content]
                if block in self._kept:
                    del self._kept[block]
                    self._idle[block] = None

    def drop_cache(self) -> None:
        """Empties the prefix cache; referenced blocks stay with their owners."""
        self.epoch += 1
        for block in list(self._key_by_block):
            self._forget_content(block)
        self._blank.extend(self._idle)
        self._blank.extend(self._kept)
        self._idle.clear()
        self._kept.clear()

    def check(self) -> None:
        """Asserts the invariants; for tests."""
        unused = [*self._blank, *self._idle, *self._kept]
        assert len(unused) == len(set(unused))
        assert set(unused) == {block for block, count in enumerate(self._num_references) if count == 0}
        assert all(block in self._key_by_block for block in (*self._idle, *self._kept))
        assert not any(block in self._key_by_block for block in self._blank)
        assert all(self._block_by_key[key] == block for block, key in self._key_by_block.items())
        assert self._content_by_block.keys() == self._key_by_block.keys()
        assert len(self._block_by_content) == len(self._content_by_block)
        assert self._num_keeping_sessions.keys() <= self._block_by_content.keys()
