"""What a judge says of a finished rollout, and how that becomes the score in its trace.

Invariant: an infrastructure fault has no score. A truncated rollout scores 0. A judge that keeps failing leaves the
rollout undecided: it is left out and counted, never scored 0.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from rstar2.agent.retry import with_retries
from rstar2.algo import rollout_reward
from rstar2.errors import InfrastructureError
from rstar2.grading import AnswerPlace, Grader
from rstar2.records import Outcome, Problem, Trace, Verdict

MAX_RETRIES = 2
FIRST_PAUSE_S = 0.5
"""A judge behind a server may be rate limited."""

WEIGHT_KEY = "weight"
DETAIL_PREFIX = "score/"
DETAIL_WEIGHT_PREFIX = "score-weight/"
"""Keys of `Trace.metadata` that hold a judgement's weight, details, and weights of details."""


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    answer: str | None = None
    """The text that was compared with the gold answer, where there is one."""
    score: float | None = None
    """A score in 0 to 1. If None, a right verdict scores 1 and any other 0."""
    weight: float = 1.0
    """What the score counts in the mean of its benchmark."""
    details: Mapping[str, float] = field(default_factory=dict)
    """Further scores by name, which the results show beside the main one."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judge:
    decide: Callable[[Problem, Trace], Awaitable[Judgement]]
    """Raises InfrastructureError if the trace could not be judged through our fault."""
    detail_weights: Callable[[Problem], Mapping[str, float]] = lambda _problem: {}
    """The names of the details that `decide` gives for a problem, and what each counts in its mean. A truncated rollout
    scores 0 in all of them."""


def answer_judge(grader: Grader, place: AnswerPlace = AnswerPlace.ANSWER_BLOCK) -> Judge:
    """Compares the answer in the model's own text with the gold answer."""

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        grade = await grader.grade(*trace.turn_texts, gold=problem.answer, place=place)
        return Judgement(grade.verdict, grade.answer, message=grade.message)

    return Judge(decide)


async def judged(judge: Judge, problem: Problem, trace: Trace) -> Trace:
    """The trace with its score, which replaces any score that it had."""
    if trace.outcome is Outcome.INFRASTRUCTURE_FAULT:
        return trace
    weights = judge.detail_weights(problem)
    if trace.outcome is Outcome.TRUNCATED:
        metadata = _metadata(trace, 1.0, dict.fromkeys(weights, 0.0), weights)
        return replace(trace, reward=rollout_reward(trace.outcome, None), metadata=metadata)
    try:
        judgement = await with_retries(lambda: judge.decide(problem, trace), MAX_RETRIES, first_pause_s=FIRST_PAUSE_S)
    except InfrastructureError as error:
        judgement = Judgement(Verdict.UNDECIDED, message=f"judging failed {MAX_RETRIES + 1} times: {error}")
    is_undecided = judgement.verdict is Verdict.UNDECIDED
    reward = rollout_reward(trace.outcome, judgement.verdict)
    return replace(
        trace,
        answer=judgement.answer,
        verdict=judgement.verdict,
        reward=reward if is_undecided or judgement.score is None else judgement.score,
        note=trace.note or (judgement.message if is_undecided else ""),
        metadata=_metadata(trace, judgement.weight, judgement.details, weights),
    )


def _metadata(
    trace: Trace, weight: float, details: Mapping[str, float], detail_weights: Mapping[str, float]
) -> dict[str, str]:
    """The trace's metadata with these scores in place of earlier ones. A weight of 1 is not written."""
    earlier = (DETAIL_PREFIX, DETAIL_WEIGHT_PREFIX)
    metadata = {key: text for key, text in trace.metadata.items() if key != WEIGHT_KEY and not key.startswith(earlier)}
    if weight != 1.0:
        metadata[WEIGHT_KEY] = repr(weight)
    for name, value in details.items():
        metadata[f"{DETAIL_PREFIX}{name}"] = repr(float(value))
        if detail_weights[name] != 1.0:
            metadata[f"{DETAIL_WEIGHT_PREFIX}{name}"] = repr(float(detail_weights[name]))
    return metadata
