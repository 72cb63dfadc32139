"""One simulated engine: continuous batching, chunked prefill and preemption as vLLM does them.

Waiting turns are admitted first come, first served, while the cache has room for what they bring (not for what they
will grow to). When the running ones outgrow the cache, the one admitted last is preempted: it goes to the head of the
queue and recomputes what it lost. Between two events every running rollout gains one token a step, so any number of
steps is one jump: only the ends of turns, prefills and a full cache cost simulation time.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from rstar2.engine import EngineLoad
from rstar2.errors import UserError
from rstar2.rollout.scheduler import PromptPart
from rstar2.rollout.simulator.cache import Cache
from rstar2.rollout.simulator.hardware import EngineModel


@dataclass(slots=True)
class EngineTimeline:
    """What one engine did over time: the source of its idle share and of the chart."""

    busy_s: float = 0.0
    recompute_s: float = 0.0
    """The part of the busy time that recomputed tokens."""
    keeps_spans: bool = False
    spans: list[tuple[float, float, float, int]] = field(default_factory=list)
    """Begin, end, recomputing seconds within, tokens of cache used at the end; empty unless `keeps_spans`."""

    def add(self, begin_s: float, end_s: float, recompute_s: float, num_used_tokens: int) -> None:
        self.busy_s += end_s - begin_s
        self.recompute_s += recompute_s
        if self.keeps_spans:
            self.spans.append((begin_s, end_s, recompute_s, num_used_tokens))


BLOCK_SIZE = 16
"""The block size of reported loads only; the simulation counts tokens."""


@dataclass(slots=True)
class SimulatedSequence:
    """One turn of one rollout, queued or running. Own tokens are those beyond the prompt that siblings share."""

    rollout: str
    parts: tuple[PromptPart, ...]
    """The prompt."""
    num_prompt_tokens: int
    num_own_tokens: int
    num_computed_tokens: int
    """Own tokens that some engine has computed before."""
    num_left: int
    """Tokens still to be sampled in this turn."""
    prompt_was_computed: bool
    num_to_prefill: int = 0
    num_to_recompute: int = 0
    decodes_since: int = -1
    """The step from which on it samples one token a step; -1 while it waits or its prefill runs."""

    def own_tokens(self, step: int) -> int:
        return self.num_own_tokens + (step - self.decodes_since if self.decodes_since >= 0 else 0)

    def settle(self, step: int) -> None:
        """Account for what it has sampled up to `step`, and stop sampling."""
        if self.decodes_since >= 0:
            self.num_left -= step - self.decodes_since
            self.num_own_tokens += step - self.decodes_since
            self.decodes_since = -1
        self.num_computed_tokens = max(self.num_computed_tokens, self.num_own_tokens - self.num_to_prefill)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The turns that left the engine at the boundary between two steps."""

    at_s: float
    ended: tuple[SimulatedSequence, ...] = ()
    cancelled: tuple[SimulatedSequence, ...] = ()


@dataclass(slots=True)
class _Plan:
    """The steps in flight: several that only decode, or one that also prefills."""

    num_steps: int = 0
    end_s: float = math.inf
    chunks: list[tuple[SimulatedSequence, int]] = field(default_factory=list)
    recompute_s: float = 0.0


class SimulatedEngine:
    def __init__(self, name: str, model: EngineModel, timeline: EngineTimeline) -> None:
        self.name = name
        self.model = model
        self.timeline = timeline
        self.cache = Cache(model.num_cache_tokens)
        self.now_s = 0.0
        """The boundary between two steps that the state describes."""
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.num_prefill_tokens = 0
        self.num_generated_tokens = 0
        self._step = 0
        self._waiting: deque[SimulatedSequence] = deque()
        self._running: dict[str, SimulatedSequence] = {}
        self._prefilling: dict[str, SimulatedSequence] = {}
        self._num_decoding = 0
        self._num_context_tokens = 0
        """The tokens of all decoding rollouts, each with its prompt."""
        self._ends: list[tuple[int, int, str, int]] = []
        self._num_ends = 0
        self._to_cancel: set[str] = set()
        self._plan = _Plan()

    @property
    def wake_s(self) -> float:
        """When `advance` must be called next; infinity if there is nothing to do."""
        return self._plan.end_s

    def load(self) -> EngineLoad:
        return EngineLoad(
            block_size=BLOCK_SIZE,
            num_blocks=self.cache.num_tokens // BLOCK_SIZE,
            num_free_blocks=max(0, self.cache.num_available) // BLOCK_SIZE,
            num_cached_blocks=self.cache.num_kept // BLOCK_SIZE,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_preemptions=self.num_preemptions,
            num_recomputed_tokens=self.num_recomputed_tokens,
            num_prefill_tokens=self.num_prefill_tokens,
            num_generated_tokens=self.num_generated_tokens,
        )

    def running_tokens(self) -> list[tuple[str, int]]:
        """Each running rollout and the size of its context."""
        step = self._step
        return [(rollout, s.num_prompt_tokens + s.own_tokens(step)) for rollout, s in self._running.items()]

    def submit(self, sequence: SimulatedSequence, at_s: float) -> None:
        """Queue a turn; it can be admitted at the next boundary."""
        self._waiting.append(sequence)
        self.interrupt(at_s)

    def cancel(self, rollout: str, at_s: float) -> None:
        """Remove a turn at the next boundary, unless it ends there."""
        self._to_cancel.add(rollout)
        self.interrupt(at_s)

    def interrupt(self, at_s: float) -> None:
        """Cut the plan short, to the first boundary that is not before `at_s`."""
        plan = self._plan
        if plan.num_steps == 0:
            self.now_s = max(self.now_s, at_s)
            plan.end_s = self.now_s
        elif not plan.chunks:
            num_steps = self._num_steps_until(at_s)
            if num_steps < plan.num_steps:
                plan.num_steps = num_steps
                plan.end_s = self.now_s + self._decode_s(num_steps)

    def advance(self) -> Boundary:
        """Carry out the plan, remove turns that have ended or were cancelled, and plan the next steps."""
        self._carry_out()
        ended = self._pop_ended()
        cancelled = self._pop_cancelled() if self._to_cancel else ()
        boundary = Boundary(self.now_s, ended, cancelled)
        self._plan_next()
        return boundary

    def kill(self, at_s: float) -> list[SimulatedSequence]:
        """The engine dies. Returns its turns, with the tokens that they had by then."""
        if self._plan.num_steps and not self._plan.chunks:
            done = self._num_steps_until(at_s)
            done -= self.now_s + self._decode_s(done) > at_s
            self._plan.num_steps, self._plan.end_s = done, self.now_s + self._decode_s(done)
            self._carry_out()
        orphans = [*self._running.values(), *self._waiting]
        for sequence in orphans:
            sequence.settle(self._step)
        self._plan = _Plan()
        return orphans

    def _decode_s(self, num_steps: int) -> float:
        return self.model.decode_s(self._num_decoding, self._num_context_tokens, num_steps)

    def _num_steps_until(self, at_s: float) -> int:
        """The fewest steps after which it is at least `at_s`."""
        wanted_s = at_s - self.now_s
        if wanted_s <= 0:
            return 0
        square = self.model.cached_token_s * self._num_decoding / 2
        linear = self._decode_s(1) - square
        root = math.sqrt(linear * linear + 4 * square * wanted_s)
        num_steps = math.ceil(2 * wanted_s / (linear + root))
        # The root is exact but for rounding.
        return num_steps if self._decode_s(num_steps) >= wanted_s else num_steps + 1

    def _carry_out(self) -> None:
        plan = self._plan
        if plan.num_steps == 0:
            return
        num_grown = self._num_decoding * plan.num_steps
        self._step += plan.num_steps
        self._num_context_tokens += num_grown
        self.num_generated_tokens += num_grown
        self.cache.grow(num_grown)
        for sequence, num_tokens in plan.chunks:
            self._prefill(sequence, num_tokens)
        self.timeline.add(self.now_s, plan.end_s, plan.recompute_s, self.cache.num_held + self.cache.num_prompt)
        self.now_s = plan.end_s
        self._plan = _Plan(end_s=self.now_s)

    def _prefill(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        num_recomputed = min(num_tokens, sequence.num_to_recompute)
        self.num_recomputed_tokens += num_recomputed
        self.num_prefill_tokens += num_tokens
        sequence.num_to_recompute -= num_recomputed
        sequence.num_to_prefill -= num_tokens
        if sequence.num_to_prefill:
            return
        del self._prefilling[sequence.rollout]
        sequence.num_left -= 1
        sequence.num_own_tokens += 1
        sequence.prompt_was_computed = True
        sequence.decodes_since = self._step
        self.num_generated_tokens += 1
        self.cache.grow(1)
        self._num_decoding += 1
        self._num_context_tokens += sequence.num_prompt_tokens + sequence.num_own_tokens
        self._num_ends += 1
        heapq.heappush(self._ends, (self._step + sequence.num_left, self._num_ends, sequence.rollout, self._step))

    def _pop_ended(self) -> tuple[SimulatedSequence, ...]:
        ended = []
        while (first := self._first_end()) is not None and first[0] <= self._step:
            ended.append(self._stop(self._running[first[2]]))
        return tuple(ended)

    def _first_end(self) -> tuple[int, int, str, int] | None:
        """The next end of a turn; entries of turns that were preempted or cancelled are dropped on the way."""
        while self._ends:
            first = self._ends[0]
            sequence = self._running.get(first[2])
            if sequence is not None and sequence.decodes_since == first[3]:
                return first
            heapq.heappop(self._ends)
        return None

    def _pop_cancelled(self) -> tuple[SimulatedSequence, ...]:
        running = [sequence for rollout, sequence in self._running.items() if rollout in self._to_cancel]
        cancelled = [self._stop(sequence) for sequence in running]
        queued = [sequence for sequence in self._waiting if sequence.rollout in self._to_cancel]
        for sequence in queued:
            self._waiting.remove(sequence)
        self._to_cancel.clear()
        return tuple(sorted([*cancelled, *queued], key=lambda sequence: sequence.rollout))

    def _stop(self, sequence: SimulatedSequence) -> SimulatedSequence:
        """Stops a running sequence; its tokens stay cached while there is room."""
        if sequence.decodes_since >= 0:
            self._num_decoding -= 1
            self._num_context_tokens -= sequence.num_prompt_tokens + sequence.own_tokens(self._step)
        sequence.settle(self._step)
        del self._running[sequence.rollout]
        self._prefilling.pop(sequence.rollout, None)
        # A prefix cache keeps full blocks of what was computed.
        num_computed = sequence.num_own_tokens - sequence.num_to_prefill
        num_kept = num_computed - (sequence.num_prompt_tokens + num_computed) % self.model.block_size
        self.cache.leave(sequence.rollout, sequence.num_own_tokens, num_kept)
        sequence.num_to_prefill = sequence.num_to_recompute = 0
        return sequence

    def _plan_next(self) -> None:
        if not self._preempt():
            self._admit()
        if self._prefilling:
            self._plan = self._plan_prefill()
        elif self._num_decoding:
            first = self._first_end()
            assert first is not None
            num_steps = min(first[0] - self._step, self.cache.num_available // self._num_decoding)
            self._plan = _Plan(num_steps, self.now_s + self._decode_s(num_steps))
        else:
            self._plan = _Plan()

    def _preempt(self) -> bool:
        """Make room for one more token of each running rollout."""
        has_preempted = False
        while self._running and len(self._running) > self.cache.num_available:
            if len(self._running) == 1:
                raise UserError(f"one rollout outgrows the cache of {self.cache.num_tokens} tokens")
            sequence = self._stop(next(reversed(self._running.values())))
            self._waiting.appendleft(sequence)
            self.num_preemptions += 1
            has_preempted = True
        return has_preempted

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.model.max_num_seqs:
            sequence = self._waiting[0]
            # Besides its own tokens, one more block for it and for each that runs.
            need = sequence.num_own_tokens + self.model.block_size * (1 + len(self._running))
            if not self.cache.fits(sequence.parts, need):
                if self._running:
                    return
                self.cache.forget_all_kept()
                if not self.cache.fits(sequence.parts, need):
                    raise UserError(f"one rollout outgrows the cache of {self.cache.num_tokens} tokens")
            self._waiting.popleft()
            self._hold(sequence)

    def _hold(self, sequence: SimulatedSequence) -> None:
        num_missing = sequence.num_own_tokens - self.cache.kept(sequence.rollout)
        sequence.num_to_prefill = num_missing
        sequence.num_to_recompute = max(0, sequence.num_computed_tokens - self.cache.kept(sequence.rollout))
        num_missing = self.cache.num_missing(sequence.parts)
        sequence.num_to_prefill += num_missing
        sequence.num_to_recompute += num_missing if sequence.prompt_was_computed else 0
        # As in vLLM, the last token of a fully cached context is recomputed, to sample from.
        sequence.num_to_prefill = max(1, sequence.num_to_prefill)
        self.cache.hold(sequence.rollout, sequence.parts, sequence.num_own_tokens)
        self._running[sequence.rollout] = sequence
        self._prefilling[sequence.rollout] = sequence

    def _plan_prefill(self) -> _Plan:
        """Plans one step: a token for each decoding sequence, and as much of the prefills as the batch takes."""
        model = self.model
        budget = max(1, model.max_num_batched_tokens - self._num_decoding)
        chunks: list[tuple[SimulatedSequence, int]] = []
        num_tokens, num_recomputed, num_pairs = 0, 0, 0.0
        for sequence in self._prefilling.values():
            chunk = min(sequence.num_to_prefill, budget - num_tokens)
            if not chunk:
                break
            chunks.append((sequence, chunk))
            num_tokens += chunk
            num_recomputed += min(chunk, sequence.num_to_recompute)
            context = sequence.num_prompt_tokens + sequence.num_own_tokens - sequence.num_to_prefill
            num_pairs += chunk * (context + chunk / 2)
        linear_s = max(model.weights_s, (self._num_decoding + num_tokens) * model.linear_token_s)
        attention_s = num_pairs * model.attention_pair_s
        duration_s = linear_s + attention_s + model.overhead_s + self._num_context_tokens * model.cached_token_s
        duration_s += self._num_decoding * model.sampled_token_s
        extra_s = duration_s - self._decode_s(1)
        return _Plan(1, self.now_s + duration_s, chunks=chunks, recompute_s=extra_s * num_recomputed / num_tokens)
