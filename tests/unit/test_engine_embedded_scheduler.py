"""The scheduler's decisions, with no device: what is prefilled, who decodes, who gives way."""

import pytest

from rstar2.engine.embedded.blocks import BlockManager
from rstar2.engine.embedded.scheduler import BatchScheduler, EngineSequence, StepPlan

pytestmark = pytest.mark.unit


def scheduler(
    num_blocks: int = 64, *, max_running: int = 8, max_prefill_tokens: int = 64, steps_ahead: int = 1
) -> BatchScheduler:
    blocks = BlockManager(num_blocks, 4)
    return BatchScheduler(
        blocks, max_running=max_running, max_prefill_tokens=max_prefill_tokens, steps_ahead=steps_ahead
    )


def chunks(plan: StepPlan) -> list[tuple[int, int]]:
    return [(chunk.start, chunk.end) for chunk in plan.prefill]


def decode(scheduler: BatchScheduler, plan: StepPlan, token_id: int = 0) -> None:
    """As the device would: each step one token, up to the full length."""
    for sequence in plan.decode:
        num_tokens = min(scheduler.steps_ahead, sequence.max_total_tokens - len(sequence.token_ids))
        sequence.append([token_id] * num_tokens, scheduler.steps_ahead)


def test_prefill_leaves_the_last_token_to_decoding() -> None:
    deciding = scheduler()
    sequence = EngineSequence(list(range(10)), 20)
    deciding.add(sequence)
    plan = deciding.plan()
    assert chunks(plan) == [(0, 9)]
    assert plan.decode == (sequence,)


def test_a_long_prompt_goes_in_chunks_while_others_decode() -> None:
    deciding = scheduler(max_prefill_tokens=8)
    short, long = EngineSequence([1, 2, 3], 20), EngineSequence(list(range(100, 120)), 40)
    deciding.add(short)
    deciding.add(long)
    seen = []
    for _ in range(4):
        plan = deciding.plan()
        seen.append((chunks(plan), short in plan.decode, long in plan.decode))
        decode(deciding, plan)
    assert seen == [
        ([(0, 2), (0, 6)], True, False),
        ([(6, 14)], True, False),
        ([(14, 19)], True, True),
        ([], True, True),
    ]


def test_a_groups_prompt_is_computed_once_even_if_it_arrives_together() -> None:
    deciding = scheduler()
    for _ in range(4):
        deciding.add(EngineSequence(list(range(18)), 30))
    assert chunks(deciding.plan()) == [(0, 17), (16, 17), (16, 17), (16, 17)]
    assert deciding.num_prefill_tokens == 20


def test_a_session_that_comes_back_finds_its_cache() -> None:
    deciding = scheduler()
    first = EngineSequence(list(range(10)), 20)
    deciding.add(first)
    while not first.is_full:
        decode(deciding, deciding.plan(), token_id=7)
    deciding.remove(first)
    deciding.add(EngineSequence([*first.token_ids, 50, 51, 52], 40))
    assert chunks(deciding.plan()) == [(16, 22)]


def test_without_room_the_youngest_gives_way_and_resumes() -> None:
    deciding = scheduler(num_blocks=6)
    old, young = EngineSequence([1] * 8, 20), EngineSequence([2] * 8, 20)
    deciding.add(old)
    deciding.add(young)
    finished = []
    for _ in range(60):
        plan = deciding.plan()
        decode(deciding, plan)
        for sequence in plan.decode:
            if sequence.is_full:
                deciding.remove(sequence)
                finished.append(sequence)
        deciding.blocks.check()
    assert finished == [old, young]
    assert deciding.num_preemptions > 0
    assert deciding.num_recomputed_tokens > 0
    assert deciding.blocks.num_free == 6


def test_a_plan_may_come_before_the_tokens_of_the_last_are_known() -> None:
    deciding = scheduler(steps_ahead=4)
    sequence = EngineSequence([1, 2, 3], 12)
    deciding.add(sequence)
    first, second = deciding.plan(), deciding.plan()
    assert first.decode == second.decode == (sequence,)
    assert sequence.num_steps_in_flight == 8
    assert len(sequence.blocks) == 3
    third = deciding.plan()
    assert third.decode == (sequence,)
    assert deciding.plan().decode == ()
    assert len(sequence.blocks) == 3
    decode(deciding, first)
    decode(deciding, second)
    decode(deciding, third)
    assert sequence.is_full
    deciding.remove(sequence)
    assert deciding.blocks.num_free == 64


def test_what_runs_on_over_new_weights_is_not_offered_to_others() -> None:
    deciding = scheduler()
    sequence = EngineSequence(list(range(10)), 20)
    deciding.add(sequence)
    decode(deciding, deciding.plan())
    deciding.blocks.drop_cache()
    decode(deciding, deciding.plan())
    deciding.remove(sequence)
    assert deciding.blocks.num_cached == 0
    assert deciding.blocks.num_free == 64


def test_slots_are_never_shared_and_waiters_wait_for_one() -> None:
    deciding = scheduler(max_running=2)
    sequences = [EngineSequence([n] * 5, 20) for n in range(3)]
    for sequence in sequences:
        deciding.add(sequence)
    assert len(deciding.plan().decode) == 2
    assert len({sequence.slot for sequence in deciding.running}) == 2
    deciding.remove(sequences[0])
    assert sequences[2] in deciding.plan().decode
