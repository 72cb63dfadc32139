"""Each baseline does what its original does, no more and no less."""

from collections.abc import Sequence

import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.rollout.policies import LeastRequests, RoundRobin, Static, WorstCase, make_policy
from rstar2.rollout.scheduler import (
    Decision,
    EngineJoined,
    EngineLost,
    EngineSpeed,
    KeepWaiting,
    Move,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Scheduler,
    Start,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

pytestmark = pytest.mark.unit

SPEED = EngineSpeed(prefill_token_s=5e-5, step_s=0.008, cached_token_s=4e-8)


def join(policy: Scheduler, num_engines: int, num_cache_tokens: int = 1000) -> None:
    for number in range(num_engines):
        assert list(policy.handle(EngineJoined(0.0, f"e{number}", num_cache_tokens, SPEED))) == []


def submit(policy: Scheduler, num_rollouts: int, num_siblings: int = 2, max_response: int = 100) -> Sequence[Decision]:
    specs = [RolloutSpec(f"r{i}", f"p{i // num_siblings}", 10, max_response) for i in range(num_rollouts)]
    return policy.handle(RolloutsSubmitted(0.0, tuple(specs)))


def started(decisions: Sequence[Decision]) -> dict[str, str]:
    return {decision.rollout: decision.engine for decision in decisions if isinstance(decision, Start)}


def end_turn(policy: Scheduler, rollout: str) -> list[Decision]:
    return [*policy.handle(TurnEnded(1.0, rollout, 50)), *policy.handle(ToolCalled(1.0, rollout))]


def end(policy: Scheduler, rollout: str) -> list[Decision]:
    return [*policy.handle(TurnEnded(1.0, rollout, 50)), *policy.handle(RolloutEnded(1.0, rollout, 50))]


def back(policy: Scheduler, rollout: str) -> list[Decision]:
    return list(policy.handle(ToolReturned(2.0, rollout, 60)))


def test_static_gives_each_engine_the_same_number_of_consecutive_rollouts() -> None:
    policy = Static()
    join(policy, 2)
    assert list(started(submit(policy, 8)).values()) == ["e0"] * 4 + ["e1"] * 4


def test_static_turns_wait_for_the_longest_on_the_same_engine() -> None:
    policy = Static()
    join(policy, 2)
    submit(policy, 6)
    for rollout in ("r0", "r1"):
        assert end_turn(policy, rollout) == []
        assert back(policy, rollout) == [], "r2 has not ended its turn"
    assert end_turn(policy, "r2") == []
    assert back(policy, "r2") == [Resume("r0", "e0"), Resume("r1", "e0"), Resume("r2", "e0")]


def test_static_does_not_wait_for_what_has_ended() -> None:
    policy = Static()
    join(policy, 1)
    submit(policy, 2)
    end_turn(policy, "r0")
    assert back(policy, "r0") == []
    assert end(policy, "r1") == [Resume("r0", "e0")]


def test_static_sends_no_new_work_to_an_engine_that_is_done() -> None:
    policy = Static()
    join(policy, 2)
    submit(policy, 4)
    assert end(policy, "r0") == []
    assert end(policy, "r1") == []


def test_round_robin_takes_the_engines_in_turns_whatever_they_hold() -> None:
    policy = RoundRobin()
    join(policy, 3)
    assert list(started(submit(policy, 7)).values()) == ["e0", "e1", "e2", "e0", "e1", "e2", "e0"]
    end(policy, "r1")
    decisions = policy.handle(RolloutsSubmitted(3.0, (RolloutSpec("late", "p9", 10, 100),)))
    assert started(decisions) == {"late": "e1"}, "the turn goes on where it stopped"


def test_least_requests_prefers_the_engine_with_the_fewest_turns_in_flight_and_ties_go_to_the_first() -> None:
    policy = LeastRequests()
    join(policy, 3)
    assert started(submit(policy, 5)) == {"r0": "e0", "r1": "e1", "r2": "e2", "r3": "e0", "r4": "e1"}
    end_turn(policy, "r1")
    end_turn(policy, "r4")
    decisions = policy.handle(RolloutsSubmitted(3.0, (RolloutSpec("late", "p9", 10, 100),)))
    assert started(decisions) == {"late": "e1"}, "rollouts at their tools do not count"


def test_least_requests_is_sticky_and_never_holds_back() -> None:
    policy = LeastRequests()
    join(policy, 2)
    assert len(started(submit(policy, 1000))) == 1000
    end_turn(policy, "r1")
    for rollout in ("r0", "r2", "r4"):
        end(policy, rollout)
    assert back(policy, "r1") == [Resume("r1", "e1")], "although e0 has fewer"


def test_worst_case_reserves_prompt_and_longest_response_for_the_whole_life() -> None:
    policy = WorstCase()
    join(policy, 2, num_cache_tokens=330)
    decisions = submit(policy, 7, max_response=100)
    assert started(decisions) == {"r0": "e0", "r1": "e1", "r2": "e0", "r3": "e1", "r4": "e0", "r5": "e1"}
    assert decisions[-1] == KeepWaiting("r6")
    assert end_turn(policy, "r0") == [], "a rollout at its tool keeps its reservation"
    assert back(policy, "r0") == [Resume("r0", "e0")]
    assert end(policy, "r3") == [Start("r6", "e1")], "what ends lets the next one in at once"


def test_worst_case_refuses_what_can_never_fit() -> None:
    policy = WorstCase()
    join(policy, 1, num_cache_tokens=100)
    with pytest.raises(UserError, match="max_response_tokens"):
        submit(policy, 1, max_response=91)


@pytest.mark.parametrize(
    "policy", [Static(), RoundRobin(), LeastRequests(), WorstCase()], ids=lambda p: type(p).__name__
)
def test_what_a_lost_engine_held_goes_on_elsewhere(policy: Scheduler) -> None:
    join(policy, 2)
    on_first = [rollout for rollout, engine in started(submit(policy, 4)).items() if engine == "e0"]
    running, at_tool = on_first
    end_turn(policy, at_tool)
    assert list(policy.handle(EngineLost(2.0, "e0"))) == [Move(running, "e0", "e1")]
    others = [rollout for rollout in ("r0", "r1", "r2", "r3") if rollout != at_tool]
    for rollout in others:
        end(policy, rollout)
    assert back(policy, at_tool) == [Move(at_tool, "e0", "e1")]


def test_losing_the_last_engine_is_said() -> None:
    policy = RoundRobin()
    join(policy, 1)
    submit(policy, 2)
    with pytest.raises(InfrastructureError, match="no engine is left for 2 rollouts"):
        policy.handle(EngineLost(1.0, "e0"))


def test_an_unknown_policy_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match=r"must be the name of a scheduling policy \(static, .*kv-aware\)"):
        make_policy("fair")
