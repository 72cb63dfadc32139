"""Judges a finished rollout, and writes its score into its trace.

Invariant: an infrastructure fault, or a rollout that was not sampled, has no score. A truncated rollout scores 0. A
judge that keeps failing leaves the rollout undecided: it is left out and counted, never scored 0.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from rstar2.agent.retry import with_retries
from rstar2.algo import rollout_reward
from rstar2.environments import Environment, Episode, Judgement
from rstar2.environments.math import MathEnvironment
from rstar2.errors import EnvironmentCodeError, InfrastructureError
from rstar2.grading import AnswerPlace, Grader
from rstar2.records import Outcome, Problem, Trace, Verdict
from rstar2.records.trace import SCORE_PREFIX

MAX_RETRIES = 2
FIRST_PAUSE_S = 0.5
"""The pause before the first retry: a judge behind a server may be rate limited."""

WEIGHT_KEY = "weight"
DETAIL_WEIGHT_PREFIX = "score-weight/"
"""Keys of `Trace.metadata` that hold a judgement's weight, and the weights of its details."""


@dataclass(frozen=True, slots=True)
class Judge:
    decide: Callable[[Problem, Trace], Awaitable[Judgement]]
    """Raises InfrastructureError if the trace could not be judged through our fault."""
    detail_weights: Callable[[Problem], Mapping[str, float]] = lambda _problem: {}
    """The names of the details that `decide` gives for a problem, and what each counts in its mean; 1 if not named. A
    truncated rollout scores 0 in all of them."""
    scores_truncated: bool = False
    """Whether a truncated rollout is judged like any other."""


def answer_judge(grader: Grader, place: AnswerPlace = AnswerPlace.ANSWER_BLOCK) -> Judge:
    """Compares the answer in the model's own text with the gold answer."""
    return Judge(MathEnvironment(grader, place).judge)


def judge_of(environment: Environment, episode: Episode, end_of_turn: str) -> Judge:
    """The judge of one episode. It reads what the model said, without the token that ends a turn."""

    async def decide(_problem: Problem, trace: Trace) -> Judgement:
        turns = tuple(replace(turn, text=turn.text.removesuffix(end_of_turn)) for turn in trace.turns)
        return await episode.score(replace(trace, turns=turns))

    return Judge(decide, scores_truncated=environment.scores_truncated)


async def judged(judge: Judge, problem: Problem, trace: Trace) -> Trace:
    """The trace with its score, which replaces any score that it had."""
    if not trace.outcome.is_scored:
        return trace
    weights = judge.detail_weights(problem)
    if trace.outcome is Outcome.TRUNCATED and not judge.scores_truncated:
        metadata = _metadata(trace, 1.0, dict.fromkeys(weights, 0.0), weights)
        return replace(trace, reward=rollout_reward(trace.outcome, None), metadata=metadata)
    try:
        judgement = await with_retries(lambda: judge.decide(problem, trace), MAX_RETRIES, first_pause_s=FIRST_PAUSE_S)
    except EnvironmentCodeError as error:
        judgement = Judgement(Verdict.UNDECIDED, message=str(error))
    except InfrastructureError as error:
        judgement = Judgement(Verdict.UNDECIDED, message=f"judging failed {MAX_RETRIES + 1} times: {error}")
    is_undecided = judgement.verdict is Verdict.UNDECIDED
    return replace(
        trace,
        answer=judgement.answer,
        verdict=judgement.verdict,
        reward=None if is_undecided else _reward(judgement, trace.outcome),
        format_penalty=judgement.format_penalty,
        note="; ".join(filter(None, (trace.note, judgement.message if is_undecided else ""))),
        metadata=_metadata(trace, judgement.weight, judgement.details, weights),
    )


def _reward(judgement: Judgement, outcome: Outcome) -> float | None:
    if judgement.score is not None:
        return judgement.score
    return rollout_reward(Outcome.ANSWERED if outcome is Outcome.TRUNCATED else outcome, judgement.verdict)


def _metadata(
    trace: Trace, weight: float, details: Mapping[str, float], detail_weights: Mapping[str, float]
) -> dict[str, str]:
    """The trace's metadata with these scores in place of earlier ones. A weight of 1 is not written."""
    earlier = (SCORE_PREFIX, DETAIL_WEIGHT_PREFIX)
    metadata = {key: text for key, text in trace.metadata.items() if key != WEIGHT_KEY and not key.startswith(earlier)}
    if weight != 1.0:
        metadata[WEIGHT_KEY] = repr(weight)
    for name, value in details.items():
        metadata[f"{SCORE_PREFIX}{name}"] = repr(float(value))
        if (weight := detail_weights.get(name, 1.0)) != 1.0:
            metadata[f"{DETAIL_WEIGHT_PREFIX}{name}"] = repr(float(weight))
    return metadata
