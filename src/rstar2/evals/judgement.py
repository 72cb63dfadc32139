"""What a benchmark's own check says of a response, and how it is written into the trace.

Invariant: what was lost through our fault keeps no score; what ran into its token limit scores 0; a judge that stays
out of order leaves the sample undecided, and never 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rstar2.errors import InfrastructureError
from rstar2.evals.sample import DETAIL_PREFIX, DETAIL_WEIGHT_PREFIX, WEIGHT_KEY
from rstar2.grading import AnswerPlace, Grader
from rstar2.records import Outcome, Problem, Trace, Verdict

Item = TypeVar("Item")

MAX_ATTEMPTS = 3
FIRST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    answer: str | None = None
    """What was compared with the gold, where there is such a thing."""
    score: float | None = None
    """In 0 to 1; None: 1 if the verdict is right, 0 if it is not."""
    weight: float = 1.0
    details: Mapping[str, float] = field(default_factory=dict)
    """Further scores, which the results show beside the main one."""
    message: str = ""


def _no_details(_: Problem) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class Judge:
    decide: Callable[[Problem, Trace], Awaitable[Judgement]]
    """InfrastructureError if it could not be judged through our fault."""
    detail_weights: Callable[[Problem], Mapping[str, float]] = _no_details
    """The details that `decide` gives for a problem, and what each counts in its mean. What is cut off before it could
    be judged has 0 in all of them."""


def answer_judge(grader: Grader, place: AnswerPlace = AnswerPlace.ANSWER_BLOCK) -> Judge:
    """The answer in the model's own words against the gold."""

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        grade = await grader.grade(*trace.turn_texts, gold=problem.answer, place=place)
        return Judgement(grade.verdict, grade.answer, message=grade.message)

    return Judge(decide)


async def judged(judge: Judge, problem: Problem, trace: Trace) -> Trace:
    """The trace with its score; whatever score it had is forgotten."""
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        return trace
    weights = judge.detail_weights(problem)
    if trace.outcome is Outcome.TRUNCATED:
        return replace(trace, reward=0.0, metadata=_metadata(trace, 1.0, dict.fromkeys(weights, 0.0), weights))
    return _with_judgement(trace, await _with_patience(judge, problem, trace), weights)


def _with_judgement(trace: Trace, judgement: Judgement, detail_weights: Mapping[str, float]) -> Trace:
    is_undecided = judgement.verdict is Verdict.UNDECIDED
    score = float(judgement.verdict is Verdict.RIGHT) if judgement.score is None else judgement.score
    return replace(
        trace,
        answer=judgement.answer,
        verdict=judgement.verdict,
        reward=None if is_undecided else score,
        note=judgement.message if is_undecided else trace.note,
        metadata=_metadata(trace, judgement.weight, judgement.details, detail_weights),
    )


def _metadata(
    trace: Trace, weight: float, details: Mapping[str, float], detail_weights: Mapping[str, float]
) -> dict[str, str]:
    """The trace's own, with these scores in place of whatever it had. A weight of 1 goes without saying."""
    old = (DETAIL_PREFIX, DETAIL_WEIGHT_PREFIX)
    metadata = {k: v for k, v in trace.metadata.items() if k != WEIGHT_KEY and not k.startswith(old)}
    if weight != 1.0:
        metadata[WEIGHT_KEY] = repr(weight)
    for name, value in details.items():
        metadata[f"{DETAIL_PREFIX}{name}"] = repr(float(value))
        if detail_weights[name] != 1.0:
            metadata[f"{DETAIL_WEIGHT_PREFIX}{name}"] = repr(float(detail_weights[name]))
    return metadata


async def with_patience(attempt: Callable[[], Awaitable[Item]]) -> Item:
    """Try again after a pause what failed through our fault; InfrastructureError if it keeps failing."""
    for number in range(1, MAX_ATTEMPTS):
        try:
            return await attempt()
        except InfrastructureError:
            await asyncio.sleep(FIRST_PAUSE_S * 2 ** (number - 1))
    return await attempt()


async def _with_patience(judge: Judge, problem: Problem, trace: Trace) -> Judgement:
    try:
        return await with_patience(lambda: judge.decide(problem, trace))
    except InfrastructureError as error:
        return Judgement(Verdict.UNDECIDED, message=f"judging failed {MAX_ATTEMPTS} times: {error}")
