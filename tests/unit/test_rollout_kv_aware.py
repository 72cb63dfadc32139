"""The kv-aware policy, decision by decision."""

from collections.abc import Sequence

import pytest

from rstar2.engine import EngineLoad
from rstar2.errors import UserError
from rstar2.rollout.cache_account import CacheAccount
from rstar2.rollout.policies.kv_aware import KvAware, KvAwareSettings
from rstar2.rollout.scheduler import (
    Cancel,
    Decision,
    EngineJoined,
    EngineLost,
    EngineReported,
    EngineSpeed,
    Evict,
    KeepWaiting,
    Move,
    PromptPart,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Start,
    TokensGrown,
    ToolCalled,
    ToolReturned,
    TurnCancelled,
    TurnEnded,
)

pytestmark = pytest.mark.unit

SPEED = EngineSpeed(prefill_token_s=5e-5, step_s=0.008, cached_token_s=4e-8)
PROMPT = 100


def make(num_engines: int, num_cache_tokens: int, settings: KvAwareSettings | None = None) -> KvAware:
    policy = KvAware(settings)
    for number in range(num_engines):
        policy.handle(EngineJoined(0.0, f"e{number}", num_cache_tokens, SPEED))
    return policy


def submit(policy: KvAware, num_problems: int, num_siblings: int, at: str = "") -> Sequence[Decision]:
    specs = [
        RolloutSpec(f"{at}p{problem}-{sample}", f"{at}p{problem}", PROMPT, 1000)
        for problem in range(num_problems)
        for sample in range(num_siblings)
    ]
    return policy.handle(RolloutsSubmitted(0.0, tuple(specs)))


def started(decisions: Sequence[Decision]) -> dict[str, str]:
    return {decision.rollout: decision.engine for decision in decisions if isinstance(decision, Start)}


def report(policy: KvAware, engine: str) -> Sequence[Decision]:
    return policy.handle(EngineReported(5.0, engine, EngineLoad(16, 0, 0, 0, 0, 0, 0, 0, 0, 0)))


def end(policy: KvAware, rollout: str, num_response_tokens: int) -> list[Decision]:
    num_tokens = PROMPT + num_response_tokens
    return [*policy.handle(TurnEnded(1.0, rollout, num_tokens)), *policy.handle(RolloutEnded(1.0, rollout, num_tokens))]


def test_more_are_started_than_the_worst_case_allows_and_fewer_than_their_prompts_would() -> None:
    decisions = submit(make(1, 20_000), 8, 32)
    assert 20_000 // 1100 < len(started(decisions)) < 20_000 // PROMPT
    assert len(decisions) == 8 * 32
    assert sum(isinstance(decision, KeepWaiting) for decision in decisions) == 256 - len(started(decisions))


def test_every_problem_is_tried_before_any_is_tried_often() -> None:
    starts = started(submit(make(2, 20_000), 16, 32))
    counts = [sum(rollout.startswith(f"p{problem}-") for rollout in starts) for problem in range(16)]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 2


def test_siblings_share_few_engines_and_engines_share_the_work() -> None:
    starts = started(submit(make(8, 20_000), 16, 8))
    for problem in range(16):
        assert len({engine for rollout, engine in starts.items() if rollout.startswith(f"p{problem}-")}) <= 2
    loads = [list(starts.values()).count(f"e{engine}") for engine in range(8)]
    assert max(loads) - min(loads) <= 2


def test_a_rollout_back_from_its_tool_goes_on_where_its_cache_is() -> None:
    policy = make(2, 20_000)
    starts = started(submit(policy, 8, 32))
    policy.handle(TurnEnded(1.0, "p0-0", 400))
    policy.handle(ToolCalled(1.0, "p0-0"))
    assert list(policy.handle(ToolReturned(2.0, "p0-0", 450))) == [Resume("p0-0", starts["p0-0"])]


def test_an_engine_that_fills_up_gives_up_its_smallest_contexts() -> None:
    policy = make(1, 5_000, KvAwareSettings(deviations=0))
    starts = list(started(submit(policy, 1, 40)))
    for rollout in starts:
        policy.handle(TokensGrown(1.0, rollout, PROMPT + 700))
    smallest, waiting = starts[0], starts[1]
    policy.handle(TokensGrown(1.0, smallest, PROMPT + 300))
    policy.handle(TurnEnded(1.0, waiting, PROMPT + 200))
    policy.handle(ToolCalled(1.0, waiting))
    decisions = list(report(policy, "e0"))
    assert decisions[:2] == [Evict(waiting, "e0"), Cancel(smallest, "e0")]
    assert list(report(policy, "e0"))[:1] != [Cancel(smallest, "e0")], "it is not cancelled twice"
    assert list(policy.handle(TurnCancelled(2.0, smallest, PROMPT + 310))) == [KeepWaiting(smallest)]
    for rollout in starts[2:]:
        resumed = end(policy, rollout, 950)
        if resumed:
            break
    assert resumed[0] == Resume(smallest, "e0"), "what was displaced goes on before anything new starts"


def num_started_after(num_tokens: int, settings: KvAwareSettings) -> int:
    """Of one engine's rollouts, all come to `num_tokens`; the engine says so, what it gives up is cancelled, and then
    half of those that are left end."""
    policy = make(1, 20_000, settings)
    residents = list(started(submit(policy, 8, 32)))
    num_started = len(residents)
    for rollout in residents:
        policy.handle(TokensGrown(1.0, rollout, PROMPT + num_tokens))
    cancelled = [decision.rollout for decision in report(policy, "e0") if isinstance(decision, Cancel)]
    for rollout in cancelled:
        policy.handle(TurnCancelled(2.0, rollout, PROMPT + num_tokens))
    for rollout in [rollout for rollout in residents if rollout not in cancelled][: num_started // 2]:
        decisions = end(policy, rollout, num_tokens + 10)
        num_started += sum(isinstance(decision, Start | Resume) for decision in decisions)
    return num_started


def test_the_reserve_shrinks_while_overflow_costs_less_than_its_budget_and_widens_when_it_costs_more() -> None:
    steered = KvAwareSettings(overflow_budget=0.01)
    fixed = KvAwareSettings(least_deviations=steered.deviations, most_deviations=steered.deviations)
    assert num_started_after(300, steered) > num_started_after(300, fixed), "nothing overflows"
    assert num_started_after(700, steered) < num_started_after(700, fixed), "much overflows"


def test_a_turn_that_ends_before_its_cancellation_is_simply_over() -> None:
    policy = make(1, 5_000, KvAwareSettings(deviations=0))
    starts = list(started(submit(policy, 1, 40)))
    for rollout in starts:
        policy.handle(TokensGrown(1.0, rollout, PROMPT + 900))
    cancelled = [decision.rollout for decision in report(policy, "e0") if isinstance(decision, Cancel)]
    end(policy, cancelled[0], 905)
    policy.handle(EngineLost(3.0, "e0"))
    moved = policy.handle(EngineJoined(4.0, "e1", 5_000, SPEED))
    assert cancelled[0] not in {decision.rollout for decision in moved}


def test_when_nothing_waits_a_rollout_moves_to_an_engine_that_is_much_emptier_and_not_to_one_that_is_a_little() -> None:
    policy = make(1, 200_000, KvAwareSettings(move_budget=1.0))
    starts = list(started(submit(policy, 4, 32)))
    assert len(starts) == 128
    for rollout in starts:
        policy.handle(TokensGrown(1.0, rollout, PROMPT + 150))
    policy.handle(TurnEnded(1.0, starts[0], PROMPT + 150))
    policy.handle(ToolCalled(1.0, starts[0]))
    assert list(policy.handle(ToolReturned(1.5, starts[0], PROMPT + 150))) == [Resume(starts[0], "e0")]
    policy.handle(EngineJoined(2.0, "e1", 200_000, SPEED))
    policy.handle(TurnEnded(3.0, starts[0], PROMPT + 160))
    policy.handle(ToolCalled(3.0, starts[0]))
    assert list(policy.handle(ToolReturned(4.0, starts[0], PROMPT + 170))) == [Move(starts[0], "e0", "e1")]


def test_a_lost_engine_gives_its_rollouts_back_and_a_new_one_takes_them() -> None:
    policy = make(1, 20_000)
    starts = list(started(submit(policy, 1, 8)))
    policy.handle(TurnEnded(1.0, starts[0], PROMPT + 50))
    policy.handle(ToolCalled(1.0, starts[0]))
    assert list(policy.handle(EngineLost(2.0, "e0"))) == []
    decisions = policy.handle(EngineJoined(3.0, "e1", 20_000, SPEED))
    assert list(decisions) == [Move(rollout, "e0", "e1") for rollout in starts[1:]]
    assert list(policy.handle(ToolReturned(4.0, starts[0], PROMPT + 60))) == [Move(starts[0], "e0", "e1")]


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(UserError, match="may need 1100 tokens of cache, but no engine has more than 1000"):
        submit(make(1, 1000), 1, 1)


def test_the_oldest_cannot_be_overtaken_for_ever() -> None:
    policy = make(1, 3_000, KvAwareSettings(max_overtakes=4))
    order = list(started(submit(policy, 30, 1)))
    running = list(order)
    while running:
        newly = started(end(policy, running.pop(0), 500))
        order += newly
        running += newly
    tickets = [int(rollout[1:].split("-")[0]) for rollout in order]
    assert sorted(tickets) == list(range(30))
    for place, ticket in enumerate(tickets):
        assert all(ticket < later + 4 for later in tickets[place:]), "started while an older one waited"


def test_moves_that_are_not_forced_stay_within_the_budget() -> None:
    policy = make(1, 200_000, KvAwareSettings(move_budget=0.0))
    starts = list(started(submit(policy, 4, 32)))
    for rollout in starts:
        policy.handle(TokensGrown(1.0, rollout, PROMPT + 150))
    policy.handle(EngineJoined(2.0, "e1", 200_000, SPEED))
    policy.handle(TurnEnded(3.0, starts[0], PROMPT + 160))
    policy.handle(ToolCalled(3.0, starts[0]))
    assert list(policy.handle(ToolReturned(4.0, starts[0], PROMPT + 170))) == [Resume(starts[0], "e0")]


def branch(rollout: str, parent: str, *turns: int, max_response_tokens: int = 1000) -> RolloutSpec:
    """A branch of a root of problem p, after as many of its turns, each of so many tokens."""
    parts = [PromptPart("p", PROMPT)]
    parts += [PromptPart(f"{parent}/{number + 1}/0", num_tokens) for number, num_tokens in enumerate(turns)]
    num_prompt_tokens = PROMPT + sum(turns)
    return RolloutSpec(
        rollout, parts[-1].name, num_prompt_tokens, max_response_tokens, "branches", parent, tuple(parts)
    )


def test_branches_start_where_their_parent_ended() -> None:
    policy = make(4, 1_000_000)
    roots = started(
        policy.handle(RolloutsSubmitted(0.0, tuple(RolloutSpec(f"r{n}", "p", PROMPT, 1000) for n in range(8))))
    )
    assert len(set(roots.values())) > 1
    for root in roots:
        end(policy, root, 900)
    specs = tuple(branch(f"b{n}", f"r{n % 8}", 400, 300) for n in range(16))
    starts = started(policy.handle(RolloutsSubmitted(2.0, specs)))
    assert starts == {spec.rollout: roots[spec.parent] for spec in specs}


def test_a_branch_of_a_lost_engine_starts_elsewhere() -> None:
    policy = make(2, 1_000_000)
    (home,) = started(policy.handle(RolloutsSubmitted(0.0, (RolloutSpec("r", "p", PROMPT, 1000),)))).values()
    end(policy, "r", 900)
    policy.handle(EngineLost(1.5, home))
    (engine,) = started(policy.handle(RolloutsSubmitted(2.0, (branch("b", "r", 400),)))).values()
    assert engine != home


def test_where_rollouts_ended_is_kept_of_the_newest_and_of_none_that_was_abandoned() -> None:
    policy = make(1, 1_000_000, KvAwareSettings(num_remembered=2))
    starts = list(started(submit(policy, 1, 4)))
    policy.handle(RolloutEnded(1.0, starts[0], PROMPT + 10, was_abandoned=True))
    for rollout in starts[1:]:
        end(policy, rollout, 10)
    assert list(policy._ended_at) == starts[2:]


def test_what_branches_of_one_root_share_is_counted_once() -> None:
    account = CacheAccount("e0", 10_000, SPEED)
    account.add(branch("b0", "r", 400, 300), 0)
    assert account.num_prompt_tokens == PROMPT + 700
    assert account.num_missing(branch("b1", "r", 400, 300, 200)) == 200
    assert account.num_missing(branch("b2", "other", 400)) == 400
    account.add(branch("b1", "r", 400), 0)
    assert account.num_prompt_tokens == PROMPT + 700
    account.remove(branch("b0", "r", 400, 300))
    assert account.num_prompt_tokens == PROMPT + 400
    account.remove(branch("b1", "r", 400))
    assert account.num_prompt_tokens == 0 and not account.parts_held


def test_a_branch_that_is_evicted_costs_what_no_other_shares() -> None:
    policy = make(1, 3500)
    specs = (branch("b0", "r", 1500), branch("b1", "r", 1500))
    assert len(started(policy.handle(RolloutsSubmitted(0.0, specs)))) == 2
    for rollout, num_own in (("b0", 900), ("b1", 930)):
        policy.handle(TurnEnded(1.0, rollout, PROMPT + 1500 + num_own))
        policy.handle(ToolCalled(1.0, rollout))
    policy.handle(ToolReturned(1.5, "b1", PROMPT + 1500 + 960))
    assert report(policy, "e0") == [Evict("b0", "e0")]
    assert policy._num_recomputed == 900, "its prefix stays with the other branch"
