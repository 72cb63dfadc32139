"""Samples whose numbers are known."""

from dataclasses import replace

from rstar2.evals.sample import Sample
from rstar2.records import Outcome, Verdict

RIGHT = Sample(
    problem_id="p",
    sample_index=0,
    outcome=Outcome.ANSWERED,
    verdict=Verdict.RIGHT,
    answer="7",
    score=1.0,
    weight=1.0,
    details={},
    num_response_tokens=100,
    num_generated_tokens=80,
    num_turns=2,
    num_tool_calls=1,
    num_own_calls=1,
    num_tool_errors=0,
    seconds=1.0,
)
UNDECIDED = replace(RIGHT, verdict=Verdict.UNDECIDED, score=None)
LOST = replace(RIGHT, outcome=Outcome.INFRASTRUCTURE_FAULT, verdict=None, score=None, num_response_tokens=3)
BEYOND_BUDGET = replace(
    RIGHT, outcome=Outcome.BEYOND_BUDGET, verdict=None, answer=None, score=None, num_response_tokens=0,
    num_generated_tokens=0,
)  # fmt: skip
TRUNCATED = replace(RIGHT, outcome=Outcome.TRUNCATED, verdict=None, answer=None, score=0.0)


def wrong(answer: str) -> Sample:
    return replace(RIGHT, verdict=Verdict.WRONG, answer=answer, score=0.0)


def of_problem(name: str, *samples: Sample) -> list[Sample]:
    return [replace(sample, problem_id=name, sample_index=index) for index, sample in enumerate(samples)]
