"""Records what one step's engines and rollouts did, while it happens.

Invariant: a rollout is in one state at a time, so its spans leave no gap; an engine is busy exactly while at least one
rollout is on it. Nothing here decides anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from rstar2.engine import EngineLoad
from rstar2.records import EngineSample, EngineUse, RolloutSpan, SpanKind, StepRecord

MAX_SAMPLES = 512
"""Samples of one engine in one step: more than a chart has pixels. Beyond it every second one is dropped."""


@dataclass(slots=True)
class Counts:
    """How often the scheduler intervened; the fields are those of `StepRecord`."""

    num_starts: int = 0
    num_moves: int = 0
    num_moved_tokens: int = 0
    num_cancels: int = 0
    num_evictions: int = 0
    num_engines_lost: int = 0


@dataclass(slots=True)
class _Engine:
    """The account of one engine, complete up to `seen_s`."""

    joined_s: float
    first: EngineLoad
    last: EngineLoad
    seen_s: float
    left_s: float | None = None
    num_turns: int = 0
    busy_s: float = 0.0
    turns_s: float = 0.0
    peak_kv_share: float = 0.0
    num_new_tokens: int = 0
    prompts: set[str] = field(default_factory=set)
    """Problems whose prompt was sent there."""

    def account(self, now_s: float) -> None:
        if self.left_s is None:
            self.busy_s += (now_s - self.seen_s) * (self.num_turns > 0)
            self.turns_s += (now_s - self.seen_s) * self.num_turns
            self.seen_s = now_s


@dataclass(slots=True)
class _Rollout:
    kind: SpanKind
    engine: str
    since_s: float
    spans: list[RolloutSpan] = field(default_factory=list)


class StepRecorder:
    def __init__(self, step: int, started: float, clock: Callable[[], float]) -> None:
        """`started` is the moment in seconds since the epoch; `clock` need only be steady."""
        self.counts = Counts()
        self._step = step
        self._started = started
        self._clock = clock
        self._origin_s = clock()
        self._engines: dict[str, _Engine] = {}
        self._retired: list[tuple[str, _Engine]] = []
        self._rollouts: dict[str, _Rollout] = {}
        self._num_ended = 0
        self._seconds = dict.fromkeys(SpanKind, 0.0)
        self._critical_rollout = ""
        self._critical_path: tuple[RolloutSpan, ...] = ()
        self._samples: list[tuple[EngineSample, ...]] = []
        self._num_sampled = 0
        self._stride = 1

    def engine_joined(self, name: str, load: EngineLoad) -> None:
        self._engines[name] = _Engine(self._now_s(), load, load, self._now_s())

    def engine_lost(self, name: str) -> None:
        """Records the loss of an engine. Its work since the last sample is unknown; its rollouts are queued."""
        for rollout, state in self._rollouts.items():
            if state.engine == name:
                self.enter(rollout, SpanKind.QUEUED)
        engine = self._engines.pop(name)
        engine.account(self._now_s())
        engine.left_s = engine.seen_s
        self._retired.append((name, engine))
        self.counts.num_engines_lost += 1

    def sample(self, loads: Mapping[str, EngineLoad]) -> None:
        """Record the engines' loads."""
        now_s = self._now_s()
        taken: list[EngineSample] = []
        for name, load in loads.items():
            engine = self._engines[name]
            engine.last = load
            kv_share = 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0
            engine.peak_kv_share = max(engine.peak_kv_share, kv_share)
            taken.append(
                EngineSample(
                    at_s=now_s,
                    engine=name,
                    num_turns=engine.num_turns,
                    num_running=load.num_running,
                    num_waiting=load.num_waiting,
                    kv_share=kv_share,
                    num_prefill_tokens=load.num_prefill_tokens - engine.first.num_prefill_tokens,
                    num_generated_tokens=load.num_generated_tokens - engine.first.num_generated_tokens,
                )
            )
        if self._num_sampled % self._stride == 0:
            self._samples.append(tuple(taken))
        self._num_sampled += 1
        if len(self._samples) > MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._stride *= 2

    def enter(self, rollout: str, kind: SpanKind, engine: str = "") -> None:
        """The rollout enters this state, on this engine."""
        now_s = self._now_s()
        state = self._rollouts.get(rollout)
        if state is None:
            self._rollouts[rollout] = _Rollout(kind, engine, now_s)
        elif (state.kind, state.engine) == (kind, engine):
            return
        else:
            self._close(state, now_s)
            state.kind, state.engine, state.since_s = kind, engine, now_s
        self._change_turns(engine, 1, now_s)

    def send(self, engine: str, num_new_tokens: int, prompt_of: str | None = None) -> None:
        """A turn begins on the engine, with `num_new_tokens` that no engine has seen: a tool's response, or the prompt
        of a problem, which counts once for all siblings."""
        account = self._engines.get(engine)
        if account is None or prompt_of in account.prompts:
            return
        if prompt_of is not None:
            account.prompts.add(prompt_of)
        account.num_new_tokens += num_new_tokens

    def end(self, rollout: str) -> None:
        """The rollout is over. The step waited for the one that ends last."""
        state = self._rollouts.pop(rollout, None)
        if state is None:
            return
        self._close(state, self._now_s())
        self._num_ended += 1
        self._critical_rollout, self._critical_path = rollout, tuple(state.spans)

    def record(self) -> StepRecord:
        """The record of the step up to now."""
        now_s = self._now_s()
        for engine in self._engines.values():
            engine.account(now_s)
        return StepRecord(
            step=self._step,
            started=self._started,
            duration_s=now_s,
            num_rollouts=self._num_ended,
            queued_s=self._seconds[SpanKind.QUEUED],
            generating_s=self._seconds[SpanKind.FIRST_TOKEN] + self._seconds[SpanKind.GENERATING],
            tool_s=self._seconds[SpanKind.TOOL],
            **asdict(self.counts),
            engines=tuple(_use(name, engine, now_s) for name, engine in [*self._retired, *self._engines.items()]),
            critical_rollout=self._critical_rollout,
            critical_path=self._critical_path,
            samples=tuple(sample for taken in self._samples for sample in taken),
        )

    def _now_s(self) -> float:
        return self._clock() - self._origin_s

    def _close(self, state: _Rollout, now_s: float) -> None:
        if now_s > state.since_s:
            state.spans.append(RolloutSpan(state.kind, state.since_s, now_s, state.engine))
        self._seconds[state.kind] += now_s - state.since_s
        self._change_turns(state.engine, -1, now_s)

    def _change_turns(self, name: str, change: int, now_s: float) -> None:
        engine = self._engines.get(name)
        if engine is not None:
            engine.account(now_s)
            engine.num_turns += change


def _use(name: str, engine: _Engine, now_s: float) -> EngineUse:
    left_s = now_s if engine.left_s is None else engine.left_s
    alive_s = left_s - engine.joined_s
    first, last = engine.first, engine.last
    return EngineUse(
        engine=name,
        num_cache_tokens=last.num_blocks * last.block_size,
        joined_s=engine.joined_s,
        left_s=left_s,
        busy_s=engine.busy_s,
        idle_s=alive_s - engine.busy_s,
        mean_turns=engine.turns_s / alive_s if alive_s else 0.0,
        peak_kv_share=engine.peak_kv_share,
        num_preemptions=last.num_preemptions - first.num_preemptions,
        num_recomputed_tokens=last.num_recomputed_tokens - first.num_recomputed_tokens,
        num_new_tokens=engine.num_new_tokens,
        num_prefill_tokens=last.num_prefill_tokens - first.num_prefill_tokens,
        num_generated_tokens=last.num_generated_tokens - first.num_generated_tokens,
    )
