"""What a step's record says, against a clock that is set by hand."""

import pytest

from rstar2.engine import EngineLoad
from rstar2.records import RolloutSpan, SpanKind
from rstar2.rollout.recorder import MAX_SAMPLES, StepRecorder

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def load(num_free_blocks: int = 10, num_preemptions: int = 0, num_generated_tokens: int = 0) -> EngineLoad:
    return EngineLoad(16, 10, num_free_blocks, 0, 1, 0, num_preemptions, 0, 0, num_generated_tokens)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> StepRecorder:
    recorder = StepRecorder(3, 1e9, clock)
    recorder.engine_joined("a", load(num_preemptions=5, num_generated_tokens=1000))
    return recorder


def play(recorder: StepRecorder, clock: Clock, rollout: str, *states: tuple[float, SpanKind, str]) -> None:
    for at_s, kind, engine in states:
        clock.now_s = 100 + at_s
        recorder.enter(rollout, kind, engine)


def test_the_critical_path_is_the_rollout_that_ended_last(recorder: StepRecorder, clock: Clock) -> None:
    play(recorder, clock, "early", (0, SpanKind.QUEUED, ""))
    play(recorder, clock, "late", (0, SpanKind.QUEUED, ""), (1, SpanKind.FIRST_TOKEN, "a"))
    clock.now_s = 102
    recorder.end("early")
    play(recorder, clock, "late", (3, SpanKind.GENERATING, "a"), (6, SpanKind.TOOL, ""))
    clock.now_s = 108
    recorder.end("late")
    clock.now_s = 110
    record = recorder.record()
    assert (record.critical_rollout, record.num_rollouts, record.duration_s) == ("late", 2, 10)
    assert record.critical_path == (
        RolloutSpan(SpanKind.QUEUED, 0, 1),
        RolloutSpan(SpanKind.FIRST_TOKEN, 1, 3, "a"),
        RolloutSpan(SpanKind.GENERATING, 3, 6, "a"),
        RolloutSpan(SpanKind.TOOL, 6, 8),
    )
    assert (record.queued_s, record.generating_s, record.tool_s) == (3, 5, 2)


def test_an_engine_is_busy_while_a_turn_is_there_and_counts_from_when_it_joined(
    recorder: StepRecorder, clock: Clock
) -> None:
    play(recorder, clock, "x", (1, SpanKind.GENERATING, "a"))
    play(recorder, clock, "y", (2, SpanKind.GENERATING, "a"), (4, SpanKind.TOOL, ""))
    play(recorder, clock, "x", (5, SpanKind.TOOL, ""))
    clock.now_s = 108
    recorder.engine_joined("b", load())
    clock.now_s = 110
    recorder.sample({"a": load(2, num_preemptions=7, num_generated_tokens=1600), "b": load()})
    a, b = recorder.record().engines
    assert (a.busy_s, a.idle_s, a.mean_turns) == (4, 6, pytest.approx(6 / 10))
    assert (a.num_preemptions, a.num_generated_tokens, a.peak_kv_share) == (2, 600, pytest.approx(0.8))
    assert (b.joined_s, b.left_s, b.busy_s, b.idle_s) == (8, 10, 0, 2)


def test_a_prompt_is_new_once_a_problem_and_a_tools_response_every_time(recorder: StepRecorder) -> None:
    recorder.send("a", 30, prompt_of="p")
    recorder.send("a", 30, prompt_of="p")
    recorder.send("a", 50, prompt_of="q")
    recorder.send("a", 7)
    recorder.send("a", 7)
    assert recorder.record().engines[0].num_new_tokens == 94


def test_what_a_lost_engine_ran_is_queued_and_its_account_is_closed(recorder: StepRecorder, clock: Clock) -> None:
    play(recorder, clock, "x", (0, SpanKind.GENERATING, "a"))
    clock.now_s = 102
    recorder.engine_lost("a")
    clock.now_s = 103
    recorder.engine_joined("a", load())
    play(recorder, clock, "x", (4, SpanKind.FIRST_TOKEN, "a"))
    clock.now_s = 106
    recorder.end("x")
    record = recorder.record()
    assert [(use.joined_s, use.left_s, use.busy_s) for use in record.engines] == [(0, 2, 2), (3, 6, 2)]
    assert [span.kind for span in record.critical_path] == ["generating", "queued", "first_token"]
    assert record.num_engines_lost == 1


def test_a_rollout_from_before_the_step_is_not_part_of_it(recorder: StepRecorder) -> None:
    recorder.end("older")
    assert recorder.record().num_rollouts == 0
    assert recorder.record().critical_rollout == ""


def test_samples_are_thinned_evenly_and_the_peak_is_kept(recorder: StepRecorder, clock: Clock) -> None:
    for second in range(5 * MAX_SAMPLES):
        clock.now_s = 100 + second
        recorder.sample({"a": load(0 if second == 1001 else 5)})
    record = recorder.record()
    assert MAX_SAMPLES / 2 <= len(record.samples) <= MAX_SAMPLES
    times = [sample.at_s for sample in record.samples]
    assert times == list(range(0, 5 * MAX_SAMPLES, int(times[1])))
    assert record.engines[0].peak_kv_share == 1
