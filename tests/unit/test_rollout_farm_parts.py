"""How rollouts are shared out among processes, and how their records become one."""

from dataclasses import replace

import pytest

from rstar2.records import EngineSample, EngineUse, Problem, RolloutSpan, SpanKind, StepRecord
from rstar2.rollout.farm.farm import shared_out
from rstar2.rollout.farm.merge import merged
from rstar2.rollout.request import RolloutRequest

pytestmark = pytest.mark.unit

USE = EngineUse("e", 1000, 0.0, 4.0, 3.0, 1.0, 10.0, 0.5, 2, 30, 100, 200, 300)
SPAN = RolloutSpan(SpanKind.GENERATING, 0.0, 3.5, "e")
RECORD = StepRecord(
    step=7,
    started=100.0,
    duration_s=4.0,
    num_rollouts=5,
    queued_s=1.0,
    generating_s=2.0,
    tool_s=3.0,
    num_starts=5,
    num_moves=0,
    num_moved_tokens=0,
    num_cancels=1,
    num_evictions=0,
    num_engines_lost=0,
    engines=(USE,),
    critical_rollout="mine",
    critical_path=(SPAN,),
    samples=(EngineSample(1.0, "e", 5, 9, 0, 0.5, 10, 20),),
)


def test_siblings_stay_together_and_shares_are_even() -> None:
    requests = [
        RolloutRequest(Problem(id=f"p{problem}", problem="?", answer="1"), f"p{problem}-{sample}")
        for sample in range(4)
        for problem in range(7)
    ]
    shares = shared_out(requests, 3)
    assert sorted(request.trace_id for share in shares for request in share) == sorted(r.trace_id for r in requests)
    homes = [{request.problem.id for request in share} for share in shares]
    assert sum(map(len, homes)) == 7
    assert sorted(map(len, shares)) == [8, 8, 12]
    assert shared_out([], 3) == [[], [], []]


def test_work_adds_up_and_what_an_engine_says_of_itself_does_not() -> None:
    later = replace(
        RECORD,
        started=100.5,
        critical_rollout="theirs",
        critical_path=(replace(SPAN, end_s=3.4),),
        engines=(replace(USE, busy_s=3.5, num_generated_tokens=310),),
    )
    both = merged([RECORD, later])
    assert (both.num_rollouts, both.tool_s, both.num_cancels) == (10, 6.0, 2)
    assert (both.started, both.duration_s) == (100.0, 4.5)
    assert both.critical_rollout == "theirs", "it ended at 103.9, the other at 103.5"
    assert both.critical_path[-1].end_s == pytest.approx(3.9)
    (use,) = both.engines
    assert (use.num_generated_tokens, use.num_new_tokens, use.mean_turns, use.busy_s) == (310, 200, 20.0, 3.5)
    assert use.idle_s == pytest.approx(use.left_s - use.joined_s - use.busy_s)
    (sample,) = both.samples
    assert (sample.num_turns, sample.num_running) == (10, 9)
    assert merged([RECORD]) is RECORD
