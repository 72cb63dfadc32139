"""The embedded engine: many sessions' turns on one model, in this process.

Invariants: one thread owns the scheduler and the device, and all others post it messages; the weights change only while
it is `paused`; each turn's iterator ends with exactly one stop reason, or with the error that ended the engine. Tokens
come in runs of `steps_ahead`; on a GPU the next run is queued before the tokens of the last are read, so the device
never waits for Python.
"""

import asyncio
import random
import sys
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from rstar2.engine.embedded import openmp
from rstar2.engine.embedded.blocks import BlockManager
from rstar2.engine.embedded.named_weights import named_weights
from rstar2.engine.embedded.options import MAX_STOP_TOKENS, EmbeddedOptions, choose_device, choose_limits
from rstar2.engine.embedded.runner import DecodeHandle, Runner
from rstar2.engine.embedded.scheduler import BatchScheduler, EngineSequence
from rstar2.engine.embedded.scoring import Scoring
from rstar2.engine.embedded.weights import Weights, load_model, share_weights
from rstar2.engine.protocol import Chunk, EngineLoad, Sampling, TokenScores
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import StopReason

_Item = Chunk | BaseException
_MANY_SEQUENCES = 64
_MIN_CHUNK_TOKENS = 32
_CHUNKS_PER_STEP = 8
"""With many running sequences each gets many tokens in one chunk, so that about this many chunks are handed over in
each step: waking an event loop costs more than sampling a token."""
_SWITCH_INTERVAL_S = 2e-4
"""Each call of the GPU's driver releases the interpreter lock, and gets it back from a busy event loop only after this:
with Python's 5 ms, a run of steps would wait longer for the lock than for the GPU."""
PAUSE_DEADLINE_S = 300.0
"""Timeout of the steps in flight; the longest is a prefill of a large model on a CPU."""


@dataclass(eq=False, slots=True)
class _Turn:
    """A sequence, and the event loop that waits for its tokens."""

    session: str
    sequence: EngineSequence
    loop: asyncio.AbstractEventLoop
    give: Callable[[_Item], None]
    """Receives the chunks, in that event loop."""
    num_handed_over: int
    """How many of the sequence's tokens were handed over, counting the prompt."""
    log_probs: list[float] = field(default_factory=list)
    """The log-probabilities of the tokens that were not handed over yet; `entropies` likewise."""
    entropies: list[float] = field(default_factory=list)
    has_begun: bool = False
    """Whether a chunk was handed over."""

    @property
    def num_new_tokens(self) -> int:
        return len(self.sequence.token_ids) - self.num_handed_over

    def take_chunk(self, stop_reason: StopReason | None, policy_version: int) -> Chunk:
        token_ids = tuple(self.sequence.token_ids[self.num_handed_over :])
        wanted = tuple(self.entropies) if self.sequence.sampling.entropies else ()
        chunk = Chunk(token_ids, tuple(self.log_probs), wanted, stop_reason, policy_version)
        self.num_handed_over += len(token_ids)
        self.log_probs, self.entropies, self.has_begun = [], [], True
        return chunk


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of decode steps that was started."""

    sequences: tuple[EngineSequence, ...]
    handle: DecodeHandle
    policy_version: int


class EmbeddedEngine:
    """Build it `on_model` (the trainer's own, whose weights it then shares), `from_folder`, or on shared weights."""

    def __init__(self, weights: Weights, options: EmbeddedOptions) -> None:
        self._weights = weights
        shape = self._weights.shape
        self._limits = choose_limits(
            options, self._weights.device, shape.context_tokens, self._weights.kv_bytes_per_token
        )
        self._blocks = BlockManager(self._limits.num_blocks, self._limits.block_size)
        self._scheduler = BatchScheduler(
            self._blocks,
            max_running=self._limits.max_running,
            max_prefill_tokens=self._limits.max_prefill_tokens,
            steps_ahead=self._limits.steps_ahead,
        )
        self._runner = Runner(self._weights, self._limits)
        if options.records_at_start:
            self._runner.record_all()
        self._seeds = random.Random(options.seed)
        self._turns: dict[EngineSequence, _Turn] = {}
        self._kept: dict[str, list[int]] = {}
        """The cached content of each session that is evicted last, because the session may continue."""
        self._scorings: deque[Scoring] = deque()
        self._in_flight: _Run | None = None
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[_Turn, _Item]]] = defaultdict(list)
        self._num_generated_tokens = 0
        self._policy_version = 0
        self._wakeup = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._num_pauses = 0
        self._is_working = False
        self._is_closed = False
        self._failure: BaseException | None = None
        self._load = self._measure_load()
        self._release_workers()
        self._thread = threading.Thread(target=self._serve, name="rstar2-engine", daemon=True)
        self._thread.start()

    @classmethod
    def on_model(cls, model: Any, options: EmbeddedOptions | None = None) -> Self:
        """An engine on a loaded `transformers` model, on any device: the two share their parameters."""
        return cls(share_weights(model), options or EmbeddedOptions())

    @classmethod
    def from_folder(cls, folder: Path, options: EmbeddedOptions | None = None, *, device: str = "auto") -> Self:
        """An engine on a Hugging Face model folder: float32 on a CPU, bfloat16 on a GPU."""
        chosen = choose_device(device)
        dtype = torch.bfloat16 if chosen.type == "cuda" else torch.float32
        return cls.on_model(load_model(folder, chosen, dtype), options)

    @property
    def model(self) -> Any:
        """The `transformers` model whose parameters the engine reads."""
        return self._weights.model

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        items: asyncio.Queue[_Item] = asyncio.Queue()
        leave = self.begin(session, token_ids, sampling, max_tokens, items.put_nowait)
        has_ended = False
        try:
            while not has_ended:
                item = await items.get()
                if isinstance(item, BaseException):
                    raise item
                has_ended = item.stop_reason is not None
                yield item
        finally:
            if not has_ended:
                leave()

    def begin(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int, give: Callable[[_Item], None]
    ) -> Callable[[], None]:
        self._check(token_ids, sampling, max_tokens)
        seed = self._seeds.getrandbits(63) if sampling.seed is None else sampling.seed & ((1 << 63) - 1)
        num_total = min(len(token_ids) + max_tokens, self._limits.max_context_tokens)
        sequence = EngineSequence(list(token_ids), num_total, sampling, seed)
        turn = _Turn(session, sequence, asyncio.get_running_loop(), give, num_handed_over=len(token_ids))
        if not self._post(partial(self._submit, turn)):
            raise InfrastructureError("the embedded engine is closed")

        def leave() -> None:
            self._post(partial(self._cancel_turn, turn))

        return leave

    async def score(self, token_ids: Sequence[int], start: int, num_top: int, temperature: float = 1.0) -> TokenScores:
        """Scores given tokens, in chunks between the steps of running turns, one request after the other, without the
        prefix cache."""
        # The last token is only looked up, so a full context can be scored.
        self._check(token_ids[:-1] or token_ids, Sampling(), max_tokens=1)
        self._check_ids(token_ids[-1:])
        if not 1 <= start <= len(token_ids) or num_top < 0 or temperature <= 0:
            raise UserError("start must be at least 1 and within the tokens, num_top at least 0, temperature above 0")
        loop = asyncio.get_running_loop()
        scoring = Scoring(token_ids, start, num_top, temperature, loop, loop.create_future())
        if not self._post(partial(self._scorings.append, scoring)):
            raise InfrastructureError("the embedded engine is closed")
        return await scoring.future

    def named_weights(self) -> dict[str, torch.Tensor]:
        return named_weights(self._weights)

    async def drop_prefixes(self) -> None:
        def drop() -> None:
            self._blocks.drop_cache()
            self._kept.clear()

        await self._ask(drop)

    def load(self) -> EngineLoad:
        return self._load

    async def cancel(self, session: str) -> None:
        def cancel_turns() -> None:
            for turn in [turn for turn in self._turns.values() if turn.session == session]:
                self._cancel_turn(turn)

        await self._ask(cancel_turns)

    async def release(self, session: str) -> None:
        self.forget(session)

    def forget(self, session: str) -> None:
        self._post(lambda: self._blocks.unkeep(self._kept.pop(session, ())))

    async def close(self) -> None:
        with self._wakeup:
            self._is_closed = True
            self._wakeup.notify_all()
        await asyncio.to_thread(self._thread.join)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the engine: inside it nothing reads the weights, and messages to the engine (cancel, release) wait.
        Entering blocks until the steps in flight are done: from an event loop, enter it in a thread."""
        with self._pausing():
            self._await_pause()
            yield

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """`paused` for an event loop, which is not blocked while the steps in flight end."""
        with self._pausing():
            await asyncio.to_thread(self._await_pause)
            yield

    @asynccontextmanager
    async def paused_for_weight_sync(self, policy_version: int) -> AsyncIterator[None]:
        """Inside it the parameters may be updated in place; after it the engine generates with them."""
        async with self.held():
            self.give_cache_back()
            try:
                yield
                self.weights_changed(policy_version)
            finally:
                self._runner.take_cache()

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Inside it no step begins; those in flight may still run."""
        with self._wakeup:
            self._num_pauses += 1
        try:
            yield
        finally:
            self._release_workers()
            with self._wakeup:
                self._num_pauses -= 1
                self._wakeup.notify_all()

    def _await_pause(self) -> None:
        """Waits until no step runs. It also returns if the pause ends first, because its caller was cancelled."""
        with self._wakeup:
            is_over = self._wakeup.wait_for(lambda: not (self._is_working and self._num_pauses), PAUSE_DEADLINE_S)
        if not is_over:
            raise InfrastructureError(
                f"the embedded engine did not pause: its steps in flight took longer than {PAUSE_DEADLINE_S:g} s"
            )

    def give_cache_back(self) -> None:
        """Frees the cache's memory until `weights_changed`, if the options say so and no turn needs its contents. Call
        it inside `paused`."""
        if self._limits.gives_cache_back and not self._turns:
            self._drop_cached()
            self._runner.give_cache_back()

    def weights_changed(self, policy_version: int) -> None:
        """The parameters were updated in place. New turns use no prefix computed before; running turns keep the keys
        and values they have. Call it inside the same `paused` in which the parameters were updated."""
        with self.paused():
            self._weights.check_shared()
            self._runner.take_cache()
            self._runner.weights_changed()
            for turn in self._turns.values():
                if turn.num_new_tokens:
                    self._outbox[turn.loop].append((turn, turn.take_chunk(None, self._policy_version)))
            self._hand_over()
            self._policy_version = policy_version
            self._drop_cached()
            self._load = self._measure_load()

    def _drop_cached(self) -> None:
        self._blocks.drop_cache()
        self._kept.clear()

    def _release_workers(self) -> None:
        """Releases the OpenMP workers of the calling thread, which will not compute for now, so that the other has all
        cores."""
        if not self._runner.is_asynchronous:
            openmp.release_workers()

    def _check(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> None:
        if self._failure is not None:
            raise InfrastructureError(f"the embedded engine failed earlier: {self._failure}")
        if not token_ids:
            raise UserError("the prompt has no tokens: give at least one")
        if max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1, not {max_tokens}")
        if len(token_ids) >= self._limits.max_context_tokens:
            raise UserError(
                f"the prompt has {len(token_ids)} tokens, and the context holds {self._limits.max_context_tokens}: "
                f"shorten it, or raise max_context_tokens as far as the model allows"
            )
        self._check_ids(token_ids)
        if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
            raise UserError(
                "temperature and top_k must be at least 0, and top_p above 0 and at most 1, not "
                f"{sampling.temperature}, {sampling.top_k} and {sampling.top_p}"
            )
        if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
            raise UserError(f"stop_token_ids has {len(sampling.stop_token_ids)} ids: at most {MAX_STOP_TOKENS} can be")
        num_total = min(len(token_ids) + max_tokens, self._limits.max_context_tokens)
        num_cached = self._limits.num_blocks * self._limits.block_size
        if num_total - 1 > num_cached:
            raise UserError(
                f"the KV cache holds {num_cached} tokens, and this turn may need {num_total - 1}: "
                f"raise kv_cache_tokens, or lower max_tokens"
            )

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        vocab_size = self._weights.shape.vocab_size
        if min(token_ids) < 0 or max(token_ids) >= vocab_size:
            raise UserError(f"the prompt has ids outside 0 to {vocab_size - 1}: it is of another tokenizer")

    def _post(self, message: Callable[[], None]) -> bool:
        """Sends the engine's thread a message, which it handles between two runs; False if the engine has ended."""
        with self._wakeup:
            if self._is_closed:
                return False
            self._inbox.append(message)
            self._wakeup.notify_all()
            return True

    async def _ask(self, message: Callable[[], None]) -> None:
        """Posts a message, and waits until it was handled."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def act() -> None:
            try:
                message()
                self._load = self._measure_load()
            finally:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(done.set)

        if self._post(act):
            await done.wait()

    # Everything below runs in the engine's thread.

    def _serve(self) -> None:
        try:
            if self._weights.device.type == "cuda":
                torch.cuda.set_device(self._weights.device)
                sys.setswitchinterval(_SWITCH_INTERVAL_S)
            while self._await_work():
                self._work()
        except BaseException as error:
            self._failure = error
        self._end_all(self._failure or InfrastructureError("it was closed"))

    def _await_work(self) -> bool:
        """Handles messages and marks that work begins; False when the engine is closed. A run in flight reads the
        weights, so a pause begins only when its tokens are absorbed."""
        while True:
            if self._in_flight is None:
                self._hand_over()
            with self._wakeup:
                if not self._need_not_wait():
                    self._release_workers()
                if self._in_flight is None:
                    self._is_working = False
                    self._wakeup.notify_all()
                self._wakeup.wait_for(self._need_not_wait)
                if self._is_closed:
                    return False
                if not self._num_pauses:
                    self._is_working = True
                    num_messages = len(self._inbox)
                    break
            self._absorb_in_flight()
        # Messages are handled one by one: if one fails, the later ones stay in the inbox for `_end_all`.
        for _ in range(num_messages):
            self._inbox.popleft()()
        self._load = self._measure_load()
        return True

    def _need_not_wait(self) -> bool:
        has_work = self._inbox or self._scheduler.running or self._scheduler.waiting or self._scorings
        return self._is_closed or self._in_flight is not None or (not self._num_pauses and bool(has_work))

    def _work(self) -> None:
        """Queues the next run, then processes the previous one. A run's tokens are passed on once the next run is
        queued: the event loops that they wake compete with this thread for the interpreter, and then this thread only
        waits."""
        plan = self._scheduler.plan()
        if plan.prefill:
            self._runner.prefill(plan.prefill)
        if self._scorings:
            self._advance_scoring()
        run = None
        if plan.decode:
            run = _Run(plan.decode, self._runner.start_decode(plan.decode), self._policy_version)
        self._hand_over()
        self._absorb_in_flight()
        self._in_flight = run
        if not self._runner.is_asynchronous:
            self._absorb_in_flight()
        self._load = self._measure_load()

    def _advance_scoring(self) -> None:
        """Computes one chunk of the oldest request for scores."""
        scoring = self._scorings[0]
        if not scoring.is_wanted or scoring.advance(self._blocks, self._runner, self._limits.max_prefill_tokens):
            self._scorings.popleft().end(self._blocks)

    def _absorb_in_flight(self) -> None:
        run, self._in_flight = self._in_flight, None
        if run is None:
            return
        sampled = run.handle.wait()
        num_running = len(run.sequences)
        is_crowd = num_running > _MANY_SEQUENCES
        chunk_tokens = max(_MIN_CHUNK_TOKENS, num_running // _CHUNKS_PER_STEP) if is_crowd else 1
        turns, steps_ahead, starts_early = self._turns, self._limits.steps_ahead, self._limits.starts_early
        rows = zip(run.sequences, sampled.token_ids, sampled.log_probs, sampled.entropies, strict=True)
        for sequence, token_ids, log_probs, entropies in rows:
            turn = turns.get(sequence)
            if turn is None:  # cancelled, or ended in the run before
                continue
            sequence.append(token_ids, steps_ahead)
            turn.log_probs += log_probs
            turn.entropies += entropies
            self._num_generated_tokens += len(token_ids)
            stop_reason = sequence.stop_reason()
            if stop_reason is not None:
                self._remove(sequence)
            is_due = turn.num_new_tokens >= chunk_tokens or (starts_early and not turn.has_begun)
            if stop_reason is not None or is_due:
                self._outbox[turn.loop].append((turn, turn.take_chunk(stop_reason, run.policy_version)))
        self._load = self._measure_load()

    def _hand_over(self) -> None:
        """Hands over all chunks that are ready, waking each event loop once. A closed loop has no receivers left."""
        for loop, pairs in self._outbox.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_put_all, pairs)
        self._outbox = defaultdict(list)

    def _remove(self, sequence: EngineSequence) -> None:
        turn = self._turns.pop(sequence)
        kept = self._scheduler.remove(sequence)
        self._blocks.unkeep(self._kept.pop(turn.session, ()))
        self._kept[turn.session] = kept

    def _submit(self, turn: _Turn) -> None:
        self._turns[turn.sequence] = turn
        self._scheduler.add(turn.sequence)

    def _cancel_turn(self, turn: _Turn) -> None:
        if turn.sequence in self._turns:
            self._remove(turn.sequence)
            self._outbox[turn.loop].append((turn, turn.take_chunk(StopReason.CANCELLED, self._policy_version)))

    def _end_all(self, error: BaseException) -> None:
        with self._wakeup:
            self._is_closed = True
            self._is_working = False
            messages = list(self._inbox)
            self._inbox.clear()
            self._wakeup.notify_all()
        for message in messages:
            with suppress(Exception):
                message()
        for scoring in self._scorings:
            scoring.fail(InfrastructureError(f"the embedded engine failed: {error}"))
        for turn in list(self._turns.values()):
            failure = InfrastructureError(f"the embedded engine failed: {error}")
            failure.__cause__ = error
            self._outbox[turn.loop].append((turn, failure))
        self._hand_over()

    def _measure_load(self) -> EngineLoad:
        return EngineLoad(
            block_size=self._blocks.block_size,
            num_blocks=self._blocks.num_blocks,
            num_free_blocks=self._blocks.num_free,
            num_cached_blocks=self._blocks.num_cached,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_preemptions=self._scheduler.num_preemptions,
            num_recomputed_tokens=self._scheduler.num_recomputed_tokens,
            num_prefill_tokens=self._scheduler.num_prefill_tokens,
            num_generated_tokens=self._num_generated_tokens,
        )


def _put_all(pairs: list[tuple[_Turn, _Item]]) -> None:
    for turn, item in pairs:
        turn.give(item)
