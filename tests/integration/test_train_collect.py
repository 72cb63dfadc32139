"""A step's rollouts: sampled on until the batch is full, groups whole, faults never rewarded; and the filter before."""

import pytest
from train_rollouts import LIMITS, LOST, PERHAPS, Says, answer, call, make_roller

from rstar2.algo import RocSettings, is_trainable
from rstar2.config import parse_recipe
from rstar2.engine import Sampling
from rstar2.records import Outcome, Problem, Selection, Trace, Verdict
from rstar2.sandbox import Executor
from rstar2.train.collector import CollectSettings, StepBatch, collect_step
from rstar2.train.curriculum.difficulty import hard_problems
from rstar2.train.seeds import Cursor, take

pytestmark = pytest.mark.integration

NUM_PROBLEMS = 6
ORDER = take(Cursor(), NUM_PROBLEMS, NUM_PROBLEMS, "9/first")[0]
PROBLEMS = tuple(Problem(f"p{index}", f"question {index}", "1") for index in range(NUM_PROBLEMS))
IN_ORDER = [PROBLEMS[index] for index in ORDER]
"""As the cursor takes them."""


def settings(max_refills: int = 2) -> CollectSettings:
    return CollectSettings(
        stage="first",
        seed=9,
        prompts_per_step=2,
        num_sampled=4,
        max_refills=max_refills,
        roc=RocSettings(group_size=2),
        limits=LIMITS,
        sampling=Sampling(),
    )


def sample_number(trace_id: str) -> int:
    return int(trace_id.rpartition("-")[2])


def half_right(trace_id: str, _question: str, _turn: int) -> str:
    return answer(sample_number(trace_id) % 2)


async def collect(
    remote: Executor, says: Says, settings: CollectSettings, cursor: Cursor | None = None, step: int = 4
) -> tuple[StepBatch, list[Trace]]:
    seen: list[Trace] = []
    roller = make_roller(remote, says)
    collected = await collect_step(roller, PROBLEMS, cursor or Cursor(), step, settings, seen.append)
    assert sorted(trace.id for trace in seen) == sorted(trace.id for trace in collected.traces)
    return collected, seen


async def test_groups_of_equal_rewards_are_dropped_and_the_cursor_goes_on(remote: Executor) -> None:
    solved, hopeless = IN_ORDER[0], IN_ORDER[2]

    def says(trace_id: str, question: str, turn: int) -> str:
        fixed = {solved.problem: 1, hopeless.problem: 0}
        return answer(fixed[question]) if question in fixed else half_right(trace_id, question, turn)

    collected, _ = await collect(remote, says, settings())
    assert [group.problem_id for group in collected.groups] == [problem.id for problem in IN_ORDER[:4]]
    assert [is_trainable(group) for group in collected.groups] == [False, True, False, True]
    assert set(collected.groups[0].selections) == {Selection.EQUAL_REWARDS, Selection.DOWNSAMPLED}
    assert (collected.num_refills, collected.cursor) == (2, Cursor(0, 4))
    assert all(len(group.trace_ids) == 4 for group in collected.groups), "groups are whole"
    following, _ = await collect(remote, half_right, settings(), collected.cursor, step=5)
    assert [group.problem_id for group in following.groups] == [problem.id for problem in IN_ORDER[4:]]
    assert following.cursor == Cursor(1, 0)


async def test_refills_end(remote: Executor) -> None:
    collected, _ = await collect(remote, lambda *_: answer(0), settings(max_refills=1))
    assert (len(collected.groups), collected.trainable, collected.num_refills) == (4, (), 1)
    collected, _ = await collect(remote, lambda *_: answer(0), settings(max_refills=0))
    assert (len(collected.groups), collected.num_refills, collected.cursor) == (2, 0, Cursor(0, 2))


async def test_what_was_lost_or_undecided_is_sampled_again_and_never_rewarded(remote: Executor) -> None:
    def says(trace_id: str, question: str, turn: int) -> str:
        if question == IN_ORDER[0].problem and sample_number(trace_id) == 1:
            return call(LOST)
        if question == IN_ORDER[1].problem and sample_number(trace_id) in (0, 4):
            return f" {PERHAPS}</reason>"
        return call(f"print({sample_number(trace_id)})") if turn == 0 else half_right(trace_id, question, turn)

    collected, _ = await collect(remote, says, settings())
    lost, undecided = collected.groups
    assert [sample_number(trace_id) for trace_id in lost.trace_ids] == [0, 1, 2, 3, 4]
    assert lost.rewards == (0.0, None, 0.0, 1.0, 0.0)
    assert lost.selections[1] is Selection.UNSCORED
    assert [sample_number(trace_id) for trace_id in undecided.trace_ids] == [0, 1, 2, 3, 4, 5]
    assert undecided.rewards == (None, 1.0, 0.0, 1.0, None, 1.0)
    for group in (lost, undecided):
        assert group.selections.count(Selection.KEPT) == 2
        assert all(
            (selection is Selection.KEPT) == (value is not None)
            for selection, value in zip(group.selections, group.advantages, strict=True)
        )
    assert collected.num_refills == 2
    faults = [trace for trace in collected.traces if trace.outcome is Outcome.INFRASTRUCTURE_FAULT]
    assert [(trace.id, trace.reward) for trace in faults] == [("s000004-first-0000-001", None)]
    assert len({trace.id for trace in collected.traces}) == 11


async def test_a_block_over_two_turns_is_no_answer_for_the_judge_and_none_for_the_penalty(remote: Executor) -> None:
    def says(trace_id: str, question: str, turn: int) -> str:
        if sample_number(trace_id) == 0:
            return f"<answer>{call('print(1)')}" if turn == 0 else r"\boxed{1}</answer>"
        return half_right(trace_id, question, turn)

    collected, _ = await collect(remote, says, settings())
    for group in collected.groups:
        assert (group.rewards[0], group.format_penalties[0]) == (0.0, 1.0)
        assert (group.rewards[1], group.format_penalties[1]) == (1.0, 0.0)
    spanning = [trace for trace in collected.traces if trace.sample_index == 0]
    assert {(trace.verdict, trace.answer, len(trace.turns)) for trace in spanning} == {(Verdict.NO_ANSWER, None, 2)}


FILTERED = """
name = "filtered"
[model]
name = "smollm2-135m"
context_tokens = 4096
[agent]
max_tool_output_tokens = 64
[rollout]
max_fault_retries = 0
[[stages]]
name = "hard"
data = ["all"]
max_response_tokens = 600
max_turns = 2
steps = 1
[stages.difficulty_filter]
num_samples = 3
drop_solved = 3
[data.all]
source = "file:all.jsonl"
"""


async def test_the_filter_drops_what_is_solved_every_time(remote: Executor) -> None:
    def says(trace_id: str, question: str, turn: int) -> str:
        number = sample_number(trace_id)
        if question == "question 0":
            return answer(1)
        if question == "question 1" and number == 2:
            return answer(0)
        if question == "question 2" and number == 2:
            return call(LOST)
        if question == "question 3" and turn == 0:
            return call("print(1)")
        return answer(0 if question == "question 4" else 1)

    recipe = parse_recipe(FILTERED)
    seen: list[Trace] = []
    hard = await hard_problems(make_roller(remote, says), PROBLEMS[:5], recipe, recipe.stages[0], 7, seen.append)
    assert [problem.id for problem in hard] == ["p1", "p2", "p4"]
    assert len(seen) == 15
