"""What the engine does next: which prompts advance, which sequences decode, who must give way. No clock, no I/O.

Invariant: every block that the planned work writes is allocated before the plan is returned, for all its decode steps
and those still in flight. So nothing can run out of cache in the middle of the work.

The next plan may be made before the tokens of the last are known. Freed blocks may be given to others at once: work
runs in the order of the plans, and a sequence that has ended writes nothing any more.

A plan counts its prefill as done, and its full blocks as findable, at once: work runs in the order of the plans, and
within one forward pass each layer stores all keys and values before any attention reads them. So rollouts of a group
that arrive together compute their common prompt once.
"""

from collections import deque
from dataclasses import dataclass

from rstar2.engine.embedded.blocks import NOTHING_OFFERED, BlockManager
from rstar2.engine.embedded.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    sequence: Sequence
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """First the chunks, in one forward pass; then the decode steps."""

    prefill: tuple[PrefillChunk, ...]
    decode: tuple[Sequence, ...]


class Scheduler:
    def __init__(self, blocks: BlockManager, *, max_running: int, max_prefill_tokens: int, steps_ahead: int) -> None:
        self.blocks = blocks
        self.steps_ahead = steps_ahead
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}
        """In the order of admission: the last one gives way first."""
        self._unread: dict[Sequence, None] = {}
        """Of those that run: their prompt is not computed yet."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prefill_tokens = 0
        self._max_prefill_tokens = max_prefill_tokens
        self._free_slots = list(reversed(range(max_running)))

    def add(self, sequence: Sequence) -> None:
        assert self.blocks.num_blocks_for(sequence.max_total_tokens - 1) <= self.blocks.num_blocks
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> list[int]:
        """It has ended or was cancelled: its blocks are free, and findable while their place is not needed. They are
        given up last; the result is what `BlockManager.unkeep` takes once nobody will come back for them."""
        if not sequence.is_running:
            self.waiting.remove(sequence)
            return []
        self._offer(sequence)
        kept = self.blocks.keep(sequence.blocks)
        self._vacate(sequence)
        return kept

    def plan(self) -> Plan:
        num_preemptions_before = self.num_preemptions
        decode = self._reserve_decode_steps()
        chunks = self._plan_prefill(may_admit=self.num_preemptions == num_preemptions_before)
        decode += self._take_read()
        for sequence in decode:
            sequence.num_steps_in_flight += self.steps_ahead
        return Plan(tuple(chunks), tuple(decode))

    def _reserve_decode_steps(self) -> list[Sequence]:
        """Room for the next steps of each decoding sequence, the oldest first; the youngest give way. Those that got
        theirs. Each run comes by here for thousands that need no block: they must cost next to nothing."""
        reserved = []
        block_size, steps_ahead = self.blocks.block_size, self.steps_ahead
        for sequence in list(self.running):
            num_planned = len(sequence.token_ids) + sequence.num_steps_in_flight
            if sequence.slot < 0 or num_planned >= sequence.max_total_tokens or sequence in self._unread:
                continue
            has_room = num_planned - 1 + steps_ahead <= len(sequence.blocks) * block_size
            if has_room or self._make_room(sequence):
                reserved.append(sequence)
        return reserved

    def _make_room(self, sequence: Sequence) -> bool:
        """False if it had to give way itself."""
        num_missing = self._num_missing_blocks(sequence)
        while num_missing > self.blocks.num_free and sequence.is_running:
            self._preempt(next(reversed(self.running)))
        if sequence.is_running and num_missing > 0:
            sequence.blocks += self.blocks.allocate(num_missing)
        return sequence.is_running

    def _num_missing_blocks(self, sequence: Sequence) -> int:
        num_tokens = sequence.num_tokens_after(self.steps_ahead)
        return self.blocks.num_blocks_for(num_tokens) - len(sequence.blocks)

    def _plan_prefill(self, *, may_admit: bool) -> list[PrefillChunk]:
        budget = self._max_prefill_tokens
        chunks: list[PrefillChunk] = []
        for sequence in self._unread:
            budget -= self._prefill(sequence, budget, chunks)
        while may_admit and self.waiting and self._free_slots and budget > 0:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            budget -= self._prefill(sequence, budget, chunks)
        return chunks

    def _take_read(self) -> list[Sequence]:
        """Those whose prompt is computed now."""
        read = [sequence for sequence in self._unread if sequence.can_decode]
        for sequence in read:
            del self._unread[sequence]
        return read

    def _prefill(self, sequence: Sequence, budget: int, chunks: list[PrefillChunk]) -> int:
        num_tokens = min(budget, sequence.num_to_prefill)
        if num_tokens > 0:
            start, end = sequence.num_computed, sequence.num_computed + num_tokens
            chunks.append(PrefillChunk(sequence, start, end))
            sequence.num_computed = end
            self.num_prefill_tokens += num_tokens
            self._offer(sequence)
        return num_tokens

    def _admit(self, sequence: Sequence) -> bool:
        """The head of the queue starts if its whole prompt fits, and then each running sequence could still grow."""
        cached = self.blocks.match(sequence.token_ids, len(sequence.token_ids) - 1)
        num_missing = self._num_missing_blocks(sequence) - len(cached)
        num_free_after = self.blocks.num_free - self.blocks.num_unused(cached) - num_missing
        if num_free_after < len(self.running):
            return False
        self.blocks.take(cached)
        sequence.blocks = cached + self.blocks.allocate(num_missing)
        sequence.num_computed = len(cached) * self.blocks.block_size
        sequence.offered = self.blocks.offered(cached)
        sequence.cache_epoch = self.blocks.epoch
        sequence.slot = self._free_slots.pop()
        self.num_recomputed_tokens += max(0, sequence.num_lost_tokens - sequence.num_computed)
        sequence.num_lost_tokens = 0
        self.waiting.popleft()
        self.running[sequence] = self._unread[sequence] = None
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        sequence.num_lost_tokens = sequence.num_computed
        self._offer(sequence)
        self._vacate(sequence)
        self.waiting.appendleft(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.blocks)
        del self.running[sequence]
        self._unread.pop(sequence, None)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        sequence.blocks = []
        sequence.offered = NOTHING_OFFERED
        sequence.num_computed = 0

    def _offer(self, sequence: Sequence) -> None:
        if sequence.cache_epoch == self.blocks.epoch:
            sequence.offered = self.blocks.offer(
                sequence.token_ids, sequence.blocks, sequence.num_computed, sequence.offered
            )
