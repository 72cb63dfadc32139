"""The simulated engine against arithmetic done by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.records import Outcome, RunDirectory, StopReason, Trace, Turn
from rstar2.rollout.policies import LeastRequests, RoundRobin
from rstar2.rollout.scheduler import Decision, Fact, PromptPart, RolloutSpec
from rstar2.rollout.simulator import (
    HARDWARE,
    QWEN3_14B,
    EngineModel,
    Fleet,
    PlannedRollout,
    PlannedTurn,
    SimulationResult,
    Workload,
    as_trees,
    generate,
    lower_bound_s,
    read_measured,
    replay,
    roofline,
    simulate,
    write_measured,
)
from rstar2.rollout.simulator.cache import Cache

pytestmark = pytest.mark.unit

# Round numbers: a step takes 10 ms, a prefilled token beyond the first ten 1 ms, reading the cache nothing.
PLAIN = EngineModel(
    num_cache_tokens=1000,
    weights_s=0.010,
    linear_token_s=0.001,
    cached_token_s=0.0,
    attention_pair_s=0.0,
    overhead_s=0.0,
)


def rollout(name: str, *turns: PlannedTurn, problem: str = "", num_prompt_tokens: int = 10) -> PlannedRollout:
    return PlannedRollout(RolloutSpec(name, problem or name, num_prompt_tokens, 900), turns)


def run(*rollouts: PlannedRollout, model: EngineModel = PLAIN, num_engines: int = 1) -> SimulationResult:
    return simulate(Workload("test", rollouts), RoundRobin(), Fleet(model, num_engines))


def test_one_rollout_takes_a_step_for_each_token() -> None:
    result = run(rollout("a", PlannedTurn(50)))
    assert result.makespan_s == pytest.approx(0.5)
    assert (result.generated_tokens, result.recomputed_tokens, result.preemptions) == (50, 0, 0)
    assert result.idle_share == 0


def test_a_long_prefill_costs_its_computation() -> None:
    assert run(rollout("a", PlannedTurn(1), num_prompt_tokens=100)).makespan_s == pytest.approx(0.1)


def test_rollouts_that_run_together_share_their_steps() -> None:
    assert run(rollout("a", PlannedTurn(50)), rollout("b", PlannedTurn(30))).makespan_s == pytest.approx(0.51)


def test_reading_the_cache_grows_with_the_contexts() -> None:
    model = EngineModel(1000, 0.010, 0.0, cached_token_s=0.001, attention_pair_s=0.0, overhead_s=0.0)
    # The prefill gives the first token; the next two steps read 11 and 12 tokens.
    assert run(rollout("a", PlannedTurn(3)), model=model).makespan_s == pytest.approx(0.03 + 0.011 + 0.012)


def test_tools_take_their_time_and_their_response_is_prefilled_but_the_rest_is_cached() -> None:
    result = run(rollout("a", PlannedTurn(20, 5, 1.0), PlannedTurn(10)))
    assert result.makespan_s == pytest.approx(0.2 + 1.0 + 0.1)
    assert result.recomputed_tokens == 0
    assert result.idle_share == pytest.approx(1.0 / 1.3)


def test_siblings_prefill_their_prompt_once() -> None:
    turns = (PlannedTurn(1),)
    apart = run(*(rollout(name, *turns, num_prompt_tokens=100) for name in "abcd"))
    together = run(*(rollout(name, *turns, num_prompt_tokens=100, problem="p") for name in "abcd"))
    assert apart.makespan_s == pytest.approx(0.4)
    assert together.makespan_s == pytest.approx(0.103)


def test_the_one_admitted_last_is_preempted_and_computes_again_what_it_lost() -> None:
    # Both fit until each has 490 tokens of its own; b then waits for a's end, and loses its last tokens one by one.
    result = run(rollout("a", PlannedTurn(600)), rollout("b", PlannedTurn(600)))
    assert result.preemptions == 1
    assert result.recomputed_tokens == 110, "what a grew by, from 490 to 600"
    assert result.generated_tokens == 1200
    assert result.makespan_s == pytest.approx(6.0 + 0.11 + 1.1)


def test_a_rollout_that_no_cache_can_hold_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="outgrows the cache of 1000 tokens"):
        run(rollout("a", PlannedTurn(1200)))


def test_prefills_beyond_the_batch_are_chunked() -> None:
    model = EngineModel(1000, 0.010, 0.001, 0.0, 0.0, 0.0, max_num_batched_tokens=50)
    result = run(rollout("a", PlannedTurn(1), num_prompt_tokens=120), model=model)
    assert result.makespan_s == pytest.approx(0.05 + 0.05 + 0.02)


def test_no_more_than_max_num_seqs_run_at_once() -> None:
    model = EngineModel(1000, 0.010, 0.0, 0.0, 0.0, 0.0, max_num_seqs=1)
    assert run(rollout("a", PlannedTurn(10)), rollout("b", PlannedTurn(10)), model=model).makespan_s == pytest.approx(
        0.2
    )


def test_no_schedule_beats_the_lower_bound() -> None:
    model = roofline(HARDWARE["h200"], QWEN3_14B, 0.5)
    workload = generate("default", seed=3, num_problems=8, num_rollouts_each=8)
    result = simulate(workload, LeastRequests(), Fleet(model, 2))
    assert lower_bound_s(workload, model, 2) < result.makespan_s


def test_the_bound_of_one_rollout_is_what_it_takes() -> None:
    workload = Workload("one", (rollout("a", PlannedTurn(20, 5, 1.0), PlannedTurn(10)),))
    assert lower_bound_s(workload, PLAIN, 4) == pytest.approx(1.3)


def test_the_roofline_of_a_14b_is_as_computed_by_hand() -> None:
    model = roofline(HARDWARE["mi300x"], QWEN3_14B, 0.5)
    assert QWEN3_14B.cache_bytes_per_token == 163_840
    assert model.num_cache_tokens == int((96e9 - 29.5e9 - 4e9) / 163_840)
    assert model.weights_s == pytest.approx(28e9 / (5.3e12 * 0.75))
    assert model.linear_token_s == pytest.approx(28e9 / (1307e12 * 0.45))


def test_a_memory_fraction_without_room_for_a_cache_is_said() -> None:
    with pytest.raises(UserError, match=r"leaves no cache: 24 GB for 29\.5 GB of weights"):
        roofline(HARDWARE["h100"], QWEN3_14B, 0.3)


def test_measured_engines_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    write_measured(path, PLAIN)
    assert read_measured(path) == PLAIN
    path.write_text('{"weights_s": 1}')
    with pytest.raises(UserError, match="needs the fields num_cache_tokens"):
        read_measured(path)


def test_the_default_workload_is_as_the_report_has_it() -> None:
    workload = generate("default", seed=0)
    assert len(workload.rollouts) == 512 * 32
    lengths = [sum(t.num_sampled_tokens + t.num_appended_tokens for t in r.turns) for r in workload.rollouts]
    assert max(lengths) == 12_288
    assert 5_800 < sum(lengths) / len(lengths) < 6_400
    num_calls = sum(len(r.turns) - 1 for r in workload.rollouts)
    assert 42_000 < num_calls < 48_000
    mean_s = sum(turn.tool_s for r in workload.rollouts for turn in r.turns) / num_calls
    assert mean_s == pytest.approx(0.3, rel=0.05)
    assert max(len(r.turns) for r in workload.rollouts) <= 10


def test_another_workload_name_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="there are default, short-tail, heavy-tail, slow-tools"):
        generate("long-tail", seed=0)


def test_recorded_traces_are_replayed_as_they_were(tmp_path: Path) -> None:
    tool_turn = Turn((1, 2, 3), (), "abc", StopReason.END_OF_TURN, appended_ids=(4, 5), tool_s=0.7)
    last_turn = Turn((6,), (), "d", StopReason.END_OF_TURN)
    with RunDirectory.create(tmp_path / "run", verb="train", recipe_toml="") as directory:
        for sample in range(2):
            trace = Trace(f"t{sample}", "p", (7, 8), "?", (tool_turn, last_turn), Outcome.ANSWERED, "g", sample, step=3)
            directory.write_trace(trace)
    workload = replay(tmp_path / "run")
    assert [planned.spec for planned in workload.rollouts] == [
        RolloutSpec("t0", "g", 2, 6),
        RolloutSpec("t1", "g", 2, 6),
    ]
    assert workload.rollouts[0].turns == (PlannedTurn(3, 2, 0.7), PlannedTurn(1))
    with pytest.raises(UserError, match="no traces of step 9"):
        replay(tmp_path / "run", step=9)


def test_recorded_branches_are_replayed_after_their_parents(tmp_path: Path) -> None:
    tool_turn = Turn((1, 2, 3), (), "abc", StopReason.END_OF_TURN, appended_ids=(4, 5), tool_s=0.7)
    last_turn = Turn((6,), (), "d", StopReason.END_OF_TURN)
    root = Trace("t0", "p", (7, 8), "?", (tool_turn, last_turn), Outcome.ANSWERED, "g", 0, step=3)
    branch = replace(root, id="t1", sample_index=1, parent="t0", num_shared_turns=1)
    unsampled = replace(root, id="t2", sample_index=2, turns=(), outcome=Outcome.BEYOND_BUDGET)
    with RunDirectory.create(tmp_path / "run", verb="train", recipe_toml="") as directory:
        for trace in (root, branch, unsampled):
            directory.write_trace(trace)
    first, second = replay(tmp_path / "run").rollouts
    assert (first.spec, first.after) == (RolloutSpec("t0", "g", 2, 6), ())
    parts = (PromptPart("g", 2), PromptPart("t0/1/0", 5))
    branched = RolloutSpec("t1", "t0/1/0", 2 + 5, 6 - 5, "/branches", "t0", parts)
    assert (second.spec, second.after) == (branched, ("t0",))
    assert second.turns == (PlannedTurn(1),)


def test_branches_begin_when_the_roots_have_ended_and_share_what_is_before_them() -> None:
    flat = [rollout(name, PlannedTurn(20, 10, 1.0), PlannedTurn(30), problem="p") for name in "abcd"]
    tree = as_trees(Workload("test", tuple(flat)), num_roots=2)
    branches = tree.rollouts[2:]
    assert tree.rollouts[:2] == tuple(flat[:2])
    assert [(branch.spec.problem, branch.after) for branch in branches] == [
        ("a/1/0", ("a", "b")),
        ("b/1/0", ("a", "b")),
    ]
    assert {(branch.spec.num_prompt_tokens, branch.spec.max_response_tokens) for branch in branches} == {(40, 870)}
    result = run(*tree.rollouts)
    assert result.generated_tokens == 2 * 50 + 2 * 30, "shared turns are generated once"
    roots = run(*tree.rollouts[:2])
    # The roots left their prefixes in the cache: one step samples the first tokens, and 29 more steps follow.
    assert result.makespan_s == pytest.approx(roots.makespan_s + 0.010 + 29 * 0.010)
    assert roots.makespan_s < lower_bound_s(tree, PLAIN, 1) <= result.makespan_s

    both = as_trees(Workload("test", (flat[0], *flat[2:])), num_roots=1).rollouts
    assert [branch.spec.problem for branch in both] == ["p", "a/1/0", "a/1/0"]
    assert run(*both).makespan_s == pytest.approx(run(flat[0]).makespan_s + 0.010 + 29 * 0.010), (
        "both branches of a point find its prefix in the cache"
    )


def test_a_cache_keeps_what_branches_begin_with_until_the_room_is_needed() -> None:
    prompt, first, second = PromptPart("p", 10), PromptPart("a/1/0", 30), PromptPart("a/2/0", 20)
    cache = Cache(100)
    cache.hold("a", (prompt,), 50)
    cache.leave("a", 50, 50)
    cache.forget("a")
    assert cache.num_used == 0, "an ended rollout leaves nothing by itself"
    cache.leave_for_branches((prompt, first, second))
    assert (cache.num_used, cache.num_available) == (60, 100)
    assert [cache.num_missing(parts) for parts in ((prompt,), (prompt, first), (prompt, first, second))] == [0, 0, 0]
    cache.hold("b", (prompt, first), 15)
    assert (cache.num_prompt, cache.num_kept, cache.num_used) == (40, 20, 75)
    cache.hold("c", (PromptPart("q", 30),), 5)
    assert cache.num_missing((prompt, first, second)) == 20, "the end of the context was evicted"
    assert cache.num_used <= cache.num_tokens and cache.num_kept == 0
    cache.leave_for_branches((second,))
    cache.forget("b")
    assert cache.num_missing((prompt, first, second)) == 60, "nothing is found behind a part that is gone"


def test_branches_keep_to_the_limit_and_nothing_is_forked_without_tools() -> None:
    long = rollout("a", PlannedTurn(400, 100, 1.0), PlannedTurn(300), problem="p")
    other = rollout("b", PlannedTurn(10, 5), PlannedTurn(300, 50, 1.0), PlannedTurn(200), problem="p")
    _, branch = as_trees(Workload("test", (long, other)), num_roots=1).rollouts
    assert branch.spec.max_response_tokens == 400
    assert branch.turns == (PlannedTurn(300, 50, 1.0), PlannedTurn(50))
    silent = Workload("test", tuple(rollout(name, PlannedTurn(20), problem="p") for name in "abc"))
    assert as_trees(silent, num_roots=1) == silent


def test_reports_go_only_to_policies_that_want_them() -> None:
    class Watching(RoundRobin):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        def handle(self, fact: Fact) -> Sequence[Decision]:
            self.seen.add(type(fact).__name__)
            return super().handle(fact)

    workload = Workload("test", (rollout("a", PlannedTurn(800)),))
    for wants_reports in (False, True):
        policy = Watching()
        policy.wants_reports = wants_reports
        simulate(workload, policy, Fleet(PLAIN, 1))
        assert ({"TokensGrown", "EngineReported"} <= policy.seen) is wants_reports
