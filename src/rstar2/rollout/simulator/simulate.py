"""The discrete-event loop: the policy receives facts from engines and tools, and its decisions are carried out.

The policy is the same object that a live run would use. The result depends on nothing but the arguments.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rstar2.rollout.scheduler import (
    Cancel,
    Decision,
    EngineJoined,
    EngineLost,
    EngineReported,
    Evict,
    Fact,
    KeepWaiting,
    Move,
    PromptPart,
    Resume,
    RolloutEnded,
    RolloutsSubmitted,
    Scheduler,
    Start,
    TokensGrown,
    ToolCalled,
    ToolReturned,
    TurnCancelled,
    TurnEnded,
)
from rstar2.rollout.simulator.engine import EngineTimeline, SimulatedEngine, SimulatedSequence
from rstar2.rollout.simulator.hardware import EngineModel
from rstar2.rollout.simulator.workload import PlannedRollout, Workload

REPORT_PERIOD_S = 2.0
"""How often each engine's load and progress are reported to policies that need it."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The engines, and when some of them join or are lost."""

    model: EngineModel
    num_engines: int
    joins_s: tuple[float, ...] = ()
    """The moments at which further engines join."""
    losses_s: tuple[tuple[float, int], ...] = ()
    """(moment, number of the engine)."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    makespan_s: float
    generated_tokens: int
    recomputed_tokens: int
    preemptions: int
    """Preemptions by the engines, and turns that the policy cancelled."""
    num_moves: int
    num_evictions: int
    idle_share: float
    """The idle share of all engines' time up to the makespan."""
    num_ended: int
    timelines: tuple[EngineTimeline, ...] = field(repr=False)


def simulate(
    workload: Workload,
    policy: Scheduler,
    fleet: Fleet,
    *,
    keeps_spans: bool = False,
    on_decision: Callable[[float, Decision], None] | None = None,
    report_period_s: float = REPORT_PERIOD_S,
) -> SimulationResult:
    return _Simulation(workload, policy, fleet, keeps_spans, on_decision, report_period_s).run()


class _Rollout:
    """The state of one rollout."""

    __slots__ = ("num_computed", "num_left", "num_own", "plan", "turn")

    def __init__(self, plan: PlannedRollout) -> None:
        self.plan = plan
        self.turn = 0
        self.num_own = 0
        self.num_computed = -1
        """Own tokens that some engine has computed; -1: not even the prompt was."""
        self.num_left = plan.turns[0].num_sampled_tokens

    @property
    def num_tokens(self) -> int:
        return self.plan.spec.num_prompt_tokens + self.num_own

    def sequence(self) -> SimulatedSequence:
        spec = self.plan.spec
        return SimulatedSequence(
            rollout=spec.rollout,
            parts=spec.prompt_parts,
            num_prompt_tokens=spec.num_prompt_tokens,
            num_own_tokens=self.num_own,
            num_computed_tokens=max(0, self.num_computed),
            num_left=self.num_left,
            prompt_was_computed=self.num_computed >= 0,
        )

    def take_back(self, sequence: SimulatedSequence) -> None:
        self.num_own = sequence.num_own_tokens
        self.num_left = sequence.num_left
        self.num_computed = sequence.num_computed_tokens if sequence.prompt_was_computed else -1


class _Simulation:
    def __init__(
        self,
        workload: Workload,
        policy: Scheduler,
        fleet: Fleet,
        keeps_spans: bool,
        on_decision: Callable[[float, Decision], None] | None,
        report_period_s: float,
    ) -> None:
        self.policy = policy
        self.fleet = fleet
        self.keeps_spans = keeps_spans
        self.on_decision = on_decision
        self.report_period_s = report_period_s
        self.now_s = 0.0
        self.engines: dict[str, SimulatedEngine] = {}
        self.timelines: list[EngineTimeline] = []
        self.lifetimes_s: list[list[float]] = []
        self.retired: list[SimulatedEngine] = []
        self.specs = tuple(plan.spec for plan in workload.rollouts if not plan.after)
        self.num_awaited = {plan.spec.rollout: len(plan.after) for plan in workload.rollouts if plan.after}
        """For each rollout that is not submitted yet, how many of the rollouts it waits for have not ended."""
        self.waiting_for: dict[str, list[str]] = {}
        for plan in workload.rollouts:
            for earlier in plan.after:
                self.waiting_for.setdefault(earlier, []).append(plan.spec.rollout)
        self.parts_below: dict[str, dict[PromptPart, None]] = {}
        """For each rollout that has branches, the parts of their prompts, first to last."""
        for plan in sorted(workload.rollouts, key=lambda plan: len(plan.spec.parts)):
            if plan.spec.parent:
                self.parts_below.setdefault(plan.spec.parent, {}).update(dict.fromkeys(plan.spec.parts))
        self.rollouts = {plan.spec.rollout: _Rollout(plan) for plan in workload.rollouts}
        self.num_ended = 0
        self.num_cancelled = 0
        self.num_moves = 0
        self.num_evictions = 0
        self.makespan_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._wakes_s: dict[str, float] = {}

    def run(self) -> SimulationResult:
        for _ in range(self.fleet.num_engines):
            self._join()
        for at_s in self.fleet.joins_s:
            self._at(at_s, self._join)
        for at_s, number in self.fleet.losses_s:
            self._at(at_s, partial(self._lose, _name(number)))
        self._tell(RolloutsSubmitted(0.0, self.specs))
        while self.num_ended < len(self.rollouts):
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        return self._result()

    def _result(self) -> SimulationResult:
        engines = [*self.engines.values(), *self.retired]
        alive_s = sum(min(end_s, self.makespan_s) - begin_s for begin_s, end_s in self.lifetimes_s)
        busy_s = sum(timeline.busy_s for timeline in self.timelines)
        return SimulationResult(
            makespan_s=self.makespan_s,
            generated_tokens=sum(engine.num_generated_tokens for engine in engines),
            recomputed_tokens=sum(engine.num_recomputed_tokens for engine in engines),
            preemptions=sum(engine.num_preemptions for engine in engines) + self.num_cancelled,
            num_moves=self.num_moves,
            num_evictions=self.num_evictions,
            idle_share=max(0.0, 1 - busy_s / alive_s),
            num_ended=self.num_ended,
            timelines=tuple(self.timelines),
        )

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, event))

    def _tell(self, fact: Fact) -> None:
        """Passes a fact to the policy, and carries out its decisions."""
        for decision in self.policy.handle(fact):
            if self.on_decision is not None:
                self.on_decision(self.now_s, decision)
            match decision:
                case Start() | Resume():
                    self._submit(decision.rollout, decision.engine)
                case Move():
                    self.num_moves += 1
                    if decision.source in self.engines:
                        self.engines[decision.source].cache.forget(decision.rollout)
                    self._submit(decision.rollout, decision.target)
                case Evict():
                    self.num_evictions += 1
                    self.engines[decision.engine].cache.forget(decision.rollout)
                case Cancel():
                    self.engines[decision.engine].cancel(decision.rollout, self.now_s)
                    self._wake(self.engines[decision.engine])
                case KeepWaiting():
                    pass

    def _submit(self, rollout: str, name: str) -> None:
        engine = self.engines[name]
        engine.submit(self.rollouts[rollout].sequence(), self.now_s)
        self._wake(engine)

    def _wake(self, engine: SimulatedEngine) -> None:
        """Schedule the engine's next advance; earlier ones lapse."""
        wake_s = engine.wake_s
        if self._wakes_s.get(engine.name) == wake_s:
            return
        self._wakes_s[engine.name] = wake_s
        if wake_s < float("inf"):
            self._at(wake_s, lambda: self._advance(engine, wake_s))

    def _advance(self, engine: SimulatedEngine, wake_s: float) -> None:
        if self._wakes_s.get(engine.name) != wake_s:
            return
        del self._wakes_s[engine.name]
        boundary = engine.advance()
        for sequence in boundary.ended:
            self._end_turn(engine, sequence)
        for sequence in boundary.cancelled:
            self.num_cancelled += 1
            self.rollouts[sequence.rollout].take_back(sequence)
            self._tell(TurnCancelled(self.now_s, sequence.rollout, self.rollouts[sequence.rollout].num_tokens))
        self._wake(engine)

    def _end_turn(self, engine: SimulatedEngine, sequence: SimulatedSequence) -> None:
        rollout = self.rollouts[sequence.rollout]
        rollout.take_back(sequence)
        assert rollout.num_left == 0, f"{sequence.rollout} has {rollout.num_left} tokens left at the end of its turn"
        self._tell(TurnEnded(self.now_s, sequence.rollout, rollout.num_tokens))
        turn = rollout.plan.turns[rollout.turn]
        rollout.turn += 1
        if rollout.turn == len(rollout.plan.turns):
            engine.cache.forget(sequence.rollout)
            engine.cache.leave_for_branches(tuple(self.parts_below.get(sequence.rollout, ())))
            self.num_ended += 1
            self.makespan_s = self.now_s
            self._tell(RolloutEnded(self.now_s, sequence.rollout, rollout.num_tokens))
            self._submit_after(sequence.rollout)
            return
        self._tell(ToolCalled(self.now_s, sequence.rollout))
        self._at(self.now_s + turn.tool_s, lambda: self._return_tool(rollout, turn.num_appended_tokens))

    def _submit_after(self, ended: str) -> None:
        """Submits the rollouts that waited for this one, and now wait for no other."""
        waiting = self.waiting_for.pop(ended, ())
        for rollout in waiting:
            self.num_awaited[rollout] -= 1
        specs = tuple(self.rollouts[rollout].plan.spec for rollout in waiting if not self.num_awaited[rollout])
        if specs:
            self._tell(RolloutsSubmitted(self.now_s, specs))

    def _return_tool(self, rollout: _Rollout, num_appended_tokens: int) -> None:
        rollout.num_own += num_appended_tokens
        rollout.num_left = rollout.plan.turns[rollout.turn].num_sampled_tokens
        self._tell(ToolReturned(self.now_s, rollout.plan.spec.rollout, rollout.num_tokens))

    def _join(self) -> None:
        name = _name(len(self.timelines))
        timeline = EngineTimeline(keeps_spans=self.keeps_spans)
        engine = SimulatedEngine(name, self.fleet.model, timeline)
        engine.now_s = self.now_s
        self.timelines.append(timeline)
        self.lifetimes_s.append([self.now_s, float("inf")])
        self.engines[name] = engine
        self._tell(EngineJoined(self.now_s, name, self.fleet.model.num_cache_tokens, self.fleet.model.speed))
        if self.policy.wants_reports:
            self._at(self.now_s + self.report_period_s, lambda: self._report(engine))

    def _lose(self, name: str) -> None:
        engine = self.engines.pop(name)
        self.retired.append(engine)
        self._wakes_s.pop(name, None)
        self.lifetimes_s[int(name.removeprefix("engine-"))][1] = self.now_s
        for sequence in engine.kill(self.now_s):
            self.rollouts[sequence.rollout].take_back(sequence)
        self._tell(EngineLost(self.now_s, name))

    def _report(self, engine: SimulatedEngine) -> None:
        if self.engines.get(engine.name) is not engine:
            return
        for rollout, num_tokens in engine.running_tokens():
            self._tell(TokensGrown(self.now_s, rollout, num_tokens))
        self._tell(EngineReported(self.now_s, engine.name, engine.load()))
        self._at(self.now_s + self.report_period_s, lambda: self._report(engine))


def _name(number: int) -> str:
    return f"engine-{number:03d}"
