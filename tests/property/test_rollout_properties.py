"""What holds for every policy on every workload, with engines that die and join."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.policies.kv_aware import KvAware, KvAwareSettings
from rstar2.rollout.scheduler import (
    Decision,
    EngineLost,
    Evict,
    Fact,
    Move,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Scheduler,
    Start,
    ToolCalled,
    ToolReturned,
    TurnCancelled,
    TurnEnded,
)
from rstar2.rollout.simulator import EngineModel, Fleet, PlannedRollout, PlannedTurn, Workload, lower_bound_s, simulate

pytestmark = pytest.mark.property

MAX_RESPONSE = 400
PROMPT = 20
MODEL = EngineModel(
    num_cache_tokens=2_000,
    weights_s=0.05,
    linear_token_s=1e-4,
    cached_token_s=1e-5,
    attention_pair_s=1e-8,
    overhead_s=0.001,
    max_num_batched_tokens=512,
)

turns = st.builds(PlannedTurn, st.integers(1, 120), st.integers(0, 20), st.floats(0, 30))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    rollouts = []
    for problem in range(draw(st.integers(1, 6))):
        for sample in range(draw(st.integers(1, 8))):
            spec = RolloutSpec(f"{problem}-{sample}", str(problem), PROMPT, MAX_RESPONSE)
            rollouts.append(
                PlannedRollout(spec, (*draw(st.lists(turns, max_size=2)), PlannedTurn(draw(st.integers(1, 120)))))
            )
    return Workload("drawn", tuple(rollouts))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Engines die one after the other, but at least one stays, and others join."""
    num_engines = draw(st.integers(1, 4))
    num_lost = draw(st.integers(0, num_engines - 1))
    moments = st.floats(0.1, 40)
    losses = tuple((draw(moments), number) for number in range(num_lost))
    return Fleet(MODEL, num_engines, tuple(draw(st.lists(moments, max_size=2))), losses)


policies = st.sampled_from(sorted(POLICIES))


class Checked:
    """A policy under observation: the order of its decisions must make sense for every rollout."""

    def __init__(self, policy: Scheduler) -> None:
        self._policy = policy
        self.wants_reports = policy.wants_reports
        self.state: dict[str, str] = {}
        self.engine: dict[str, str] = {}
        self.num_ended: Counter[str] = Counter()
        self.starts: list[str] = []

    def handle(self, fact: Fact) -> list[Decision]:
        match fact:
            case RolloutsSubmitted():
                self.state |= {spec.rollout: "new" for spec in fact.rollouts}
            case TurnEnded():
                assert self.state[fact.rollout] == "running"
                self.state[fact.rollout] = "turn ended"
            case TurnCancelled():
                assert self.state[fact.rollout] == "running"
                self.state[fact.rollout] = "ready"
            case ToolCalled():
                self.state[fact.rollout] = "at tool"
            case ToolReturned():
                self.state[fact.rollout] = "ready"
            case RolloutEnded():
                self.num_ended[fact.rollout] += 1
                self.state[fact.rollout] = "ended"
            case EngineLost():
                for rollout, engine in self.engine.items():
                    if engine == fact.engine and self.state[rollout] == "running":
                        self.state[rollout] = "ready"
            case _:
                pass
        decisions = list(self._policy.handle(fact))
        for decision in decisions:
            self._check(decision)
        return decisions

    def _check(self, decision: Decision) -> None:
        match decision:
            case Start():
                assert self.state[decision.rollout] == "new"
                self.starts.append(decision.rollout)
                self._runs(decision.rollout, decision.engine)
            case Resume():
                assert self.state[decision.rollout] == "ready"
                assert decision.engine == self.engine[decision.rollout], "a resumption is where it was before"
                self._runs(decision.rollout, decision.engine)
            case Move():
                assert self.state[decision.rollout] == "ready"
                assert decision.source == self.engine[decision.rollout]
                self._runs(decision.rollout, decision.target)
            case Evict():
                assert self.state[decision.rollout] == "at tool", "a running rollout has no cache to be given up"
            case _:
                pass

    def _runs(self, rollout: str, engine: str) -> None:
        self.state[rollout] = "running"
        self.engine[rollout] = engine


@settings(max_examples=150, deadline=None)
@given(workloads(), policies, fleets())
def test_every_rollout_ends_exactly_once_and_every_token_is_generated_once(
    workload: Workload, policy: str, fleet: Fleet
) -> None:
    checked = Checked(make_policy(policy))
    result = simulate(workload, checked, fleet)
    assert checked.num_ended == Counter(rollout.spec.rollout for rollout in workload.rollouts)
    assert result.num_ended == len(workload.rollouts)
    assert result.generated_tokens == sum(rollout.num_sampled_tokens for rollout in workload.rollouts)
    if not fleet.joins_s:
        assert result.makespan_s >= lower_bound_s(workload, MODEL, fleet.num_engines) * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(workloads(), policies, fleets())
def test_the_same_facts_give_the_same_decisions(workload: Workload, policy: str, fleet: Fleet) -> None:
    runs: list[list[tuple[float, Decision]]] = []
    for _ in range(2):
        decisions: list[tuple[float, Decision]] = []
        simulate(workload, make_policy(policy), fleet, on_decision=lambda at_s, d, log=decisions: log.append((at_s, d)))
        runs.append(decisions)
    assert runs[0] == runs[1]


@settings(max_examples=80, deadline=None)
@given(workloads(), fleets(), st.integers(1, 12))
def test_no_rollout_is_overtaken_beyond_the_bound(workload: Workload, fleet: Fleet, max_overtakes: int) -> None:
    checked = Checked(KvAware(KvAwareSettings(max_overtakes=max_overtakes)))
    simulate(workload, checked, fleet)
    place = {rollout.spec.rollout: number for number, rollout in enumerate(workload.rollouts)}
    order = [place[rollout] for rollout in checked.starts]
    oldest_after = list(order)
    for index in range(len(order) - 2, -1, -1):
        oldest_after[index] = min(order[index], oldest_after[index + 1])
    assert all(started < oldest + max_overtakes for started, oldest in zip(order, oldest_after, strict=True))


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_the_worst_case_reservation_never_overflows(workload: Workload) -> None:
    result = simulate(workload, make_policy("worst-case"), Fleet(MODEL, 2))
    assert (result.preemptions, result.recomputed_tokens) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.integers(1, 3))
def test_no_cache_ever_holds_more_than_it_has(workload: Workload, num_engines: int) -> None:
    for policy in POLICIES:
        result = simulate(workload, make_policy(policy), Fleet(MODEL, num_engines), keeps_spans=True)
        for timeline in result.timelines:
            assert all(num_used <= MODEL.num_cache_tokens for _, _, _, num_used in timeline.spans)
            ends = [(begin_s, end_s) for begin_s, end_s, _, _ in timeline.spans]
            assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(ends))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12))
def test_equal_rollouts_are_spread_evenly(num_engines: int) -> None:
    """Ties are broken fairly: no engine gets everything because it comes first."""
    plans = tuple(
        PlannedRollout(RolloutSpec(f"{problem}-{sample}", str(problem), PROMPT, MAX_RESPONSE), (PlannedTurn(50),))
        for problem in range(num_engines)
        for sample in range(4)
    )
    for policy in POLICIES:
        checked = Checked(make_policy(policy))
        simulate(Workload("equal", plans), checked, Fleet(MODEL, num_engines))
        counts = Counter(checked.engine.values())
        assert len(counts) == num_engines
        assert max(counts.values()) - min(counts.values()) <= 1, policy
