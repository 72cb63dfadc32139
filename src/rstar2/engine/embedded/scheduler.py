"""Plans the engine's next work: which prompts are prefilled, which sequences decode, which are preempted. No clock, no
I/O.

Invariants: the last id of a sequence is never computed ahead of time. Prefill computes all ids but the last; each
decode step feeds the last one and appends what it samples. So sampling happens in one place, and a fully cached prompt
needs no prefill. Every block that a plan writes is allocated before the plan is returned, for all its decode steps and
those still in flight. So nothing can run out of cache in the middle of the work.

The next plan may be made before the tokens of the last are known. Freed blocks may be reused at once: work runs in the
order of the plans, and a sequence that has ended writes nothing.

A plan counts its prefill as done, and its full blocks as cached, at once: within one forward pass each layer stores all
keys and values before any attention reads them. So rollouts of a group that arrive together compute their common prompt
once.
"""

from collections import deque
from dataclasses import dataclass, field

from rstar2.engine.embedded.blocks import NOTHING_OFFERED, BlockManager, Offered
from rstar2.engine.protocol import Sampling
from rstar2.records import StopReason


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One turn of one session inside the engine: its ids, and how much of its KV cache is computed, and where."""

    token_ids: list[int]
    max_total_tokens: int
    """The turn ends at this length, including the prompt."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Leading tokens whose keys and values are in `blocks`, or will be once the planned work has run."""
    slot: int = -1
    """The sequence's row in the runner's tables while it runs, else -1."""
    offered: Offered = NOTHING_OFFERED
    """How much of `blocks` was offered to the prefix cache."""
    cache_epoch: int = -1
    """The cache epoch of the sequence's keys and values: after a weight update they do not enter the prefix cache."""
    num_steps_in_flight: int = 0
    """Planned decode steps whose tokens have not arrived yet."""
    num_lost_tokens: int = 0
    """Tokens computed before the last preemption; some of them may still be cached."""

    @property
    def num_to_prefill(self) -> int:
        return len(self.token_ids) - 1 - self.num_computed

    @property
    def is_running(self) -> bool:
        return self.slot >= 0

    def num_tokens_after(self, num_steps: int) -> int:
        """Tokens with keys and values after `num_steps` decode steps beyond those in flight, at most."""
        return min(len(self.token_ids) - 1 + self.num_steps_in_flight + num_steps, self.max_total_tokens - 1)

    @property
    def can_decode(self) -> bool:
        """Whether the prompt is computed, and the steps in flight do not reach the full length."""
        return self.num_to_prefill == 0 and len(self.token_ids) + self.num_steps_in_flight < self.max_total_tokens

    def append(self, token_ids: list[int], num_steps: int) -> None:
        """Appends the tokens of `num_steps` steps that were in flight; they are fewer than the steps if the sequence
        ended."""
        self.num_steps_in_flight -= num_steps
        self.token_ids += token_ids
        if self.is_running:
            self.num_computed = len(self.token_ids) - 1

    def stop_reason(self) -> StopReason | None:
        """Why the sequence stopped; None while it runs."""
        if self.token_ids[-1] in self.sampling.stop_token_ids:
            return StopReason.END_OF_TURN
        return StopReason.TOKEN_LIMIT if self.is_full else None

    @property
    def is_full(self) -> bool:
        return len(self.token_ids) >= self.max_total_tokens


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    sequence: EngineSequence
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A plan: first the chunks, in one forward pass; then the decode steps."""

    prefill: tuple[PrefillChunk, ...]
    decode: tuple[EngineSequence, ...]


class BatchScheduler:
    def __init__(self, blocks: BlockManager, *, max_running: int, max_prefill_tokens: int, steps_ahead: int) -> None:
        self.blocks = blocks
        self.steps_ahead = steps_ahead
        self.waiting: deque[EngineSequence] = deque()
        self.running: dict[EngineSequence, None] = {}
        """Running sequences in the order of admission: the last one is preempted first."""
        self._prefilling: dict[EngineSequence, None] = {}
        """Running sequences whose prompt is not computed yet."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prefill_tokens = 0
        self._max_prefill_tokens = max_prefill_tokens
        self._free_slots = list(reversed(range(max_running)))

    def add(self, sequence: EngineSequence) -> None:
        assert self.blocks.num_blocks_for(sequence.max_total_tokens - 1) <= self.blocks.num_blocks
        self.waiting.append(sequence)

    def remove(self, sequence: EngineSequence) -> list[int]:
        """Removes a sequence that ended or was cancelled. Its blocks are freed, stay cached while there is room, and
        are evicted last; the result is the argument for `BlockManager.unkeep` when its session is released."""
        if not sequence.is_running:
            self.waiting.remove(sequence)
            return []
        self._offer(sequence)
        kept = self.blocks.keep(sequence.blocks)
        self._vacate(sequence)
        return kept

    def plan(self) -> StepPlan:
        num_preemptions_before = self.num_preemptions
        decode = self._reserve_decode_steps()
        chunks = self._plan_prefill(may_admit=self.num_preemptions == num_preemptions_before)
        prefilled = [sequence for sequence in self._prefilling if sequence.can_decode]
        for sequence in prefilled:
            del self._prefilling[sequence]
        decode += prefilled
        for sequence in decode:
            sequence.num_steps_in_flight += self.steps_ahead
        return StepPlan(tuple(chunks), tuple(decode))

    def _reserve_decode_steps(self) -> list[EngineSequence]:
        """Allocates blocks for the next steps of each decoding sequence, the oldest first, and preempts the youngest.
        Returns the sequences that decode. Thousands of them need no block in a run, and must cost next to nothing."""
        reserved = []
        block_size, steps_ahead = self.blocks.block_size, self.steps_ahead
        for sequence in list(self.running):
            num_planned = len(sequence.token_ids) + sequence.num_steps_in_flight
            if sequence.slot < 0 or num_planned >= sequence.max_total_tokens or sequence in self._prefilling:
                continue
            has_room = num_planned - 1 + steps_ahead <= len(sequence.blocks) * block_size
            if has_room or self._make_room(sequence):
                reserved.append(sequence)
        return reserved

    def _make_room(self, sequence: EngineSequence) -> bool:
        """Allocates blocks for the sequence's next steps, preempting others if necessary. False if it was preempted
        itself."""
        num_missing = self._num_missing_blocks(sequence)
        while num_missing > self.blocks.num_free and sequence.is_running:
            self._preempt(next(reversed(self.running)))
        if sequence.is_running and num_missing > 0:
            sequence.blocks += self.blocks.allocate(num_missing)
        return sequence.is_running

    def _num_missing_blocks(self, sequence: EngineSequence) -> int:
        num_tokens = sequence.num_tokens_after(self.steps_ahead)
        return self.blocks.num_blocks_for(num_tokens) - len(sequence.blocks)

    def _plan_prefill(self, *, may_admit: bool) -> list[PrefillChunk]:
        budget = self._max_prefill_tokens
        chunks: list[PrefillChunk] = []
        for sequence in self._prefilling:
            budget -= self._prefill(sequence, budget, chunks)
        while may_admit and self.waiting and self._free_slots and budget > 0:
            sequence = self.waiting[0]
            if not self._admit(sequence):
                break
            budget -= self._prefill(sequence, budget, chunks)
        return chunks

    def _prefill(self, sequence: EngineSequence, budget: int, chunks: list[PrefillChunk]) -> int:
        num_tokens = min(budget, sequence.num_to_prefill)
        if num_tokens > 0:
            start, end = sequence.num_computed, sequence.num_computed + num_tokens
            chunks.append(PrefillChunk(sequence, start, end))
            sequence.num_computed = end
            self.num_prefill_tokens += num_tokens
            self._offer(sequence)
        return num_tokens

    def _admit(self, sequence: EngineSequence) -> bool:
        """Starts the head of the queue if its full prompt fits, and each running sequence can then still grow."""
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
        self.running[sequence] = self._prefilling[sequence] = None
        return True

    def _preempt(self, sequence: EngineSequence) -> None:
        self.num_preemptions += 1
        sequence.num_lost_tokens = sequence.num_computed
        self._offer(sequence)
        self._vacate(sequence)
        self.waiting.appendleft(sequence)

    def _vacate(self, sequence: EngineSequence) -> None:
        self.blocks.free(sequence.blocks)
        del self.running[sequence]
        self._prefilling.pop(sequence, None)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1
        sequence.blocks = []
        sequence.offered = NOTHING_OFFERED
        sequence.num_computed = 0

    def _offer(self, sequence: EngineSequence) -> None:
        if sequence.cache_epoch == self.blocks.epoch:
            sequence.offered = self.blocks.offer(
                sequence.token_ids, sequence.blocks, sequence.num_computed, sequence.offered
            )
