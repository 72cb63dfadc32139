"""Arena-Hard against lmarena/arena-hard-auto: the judge's prompt, its labels, and the points of both games."""

import math
from typing import Any

import pytest

from golden_file import read_golden
from rstar2.engine.protocol import Message
from rstar2.errors import InfrastructureError
from rstar2.evals.arena import arena_judge, game, points_of_first
from rstar2.evals.metrics import measure
from rstar2.evals.sample import Sample
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.rollout import judge
from rstar2.rollout.judge import judged

pytestmark = pytest.mark.unit

GOLDEN = read_golden("arena_hard")
REPLIES: list[tuple[str, str | None]] = GOLDEN["replies"]
POINTS = {"A>>B": (1, 3), "A>B": (1, 1), "A=B": (0.5, 1), "B>A": (0, 1), "B>>A": (0, 3)}
MIRRORED = {"A<<B": "B>>A", "A<B": "B>A", "B=A": "A=B", "B<A": "A>B", "B<<A": "A>>B"}


def test_the_judge_is_asked_in_the_same_words() -> None:
    asked = game("Why {so}?", "Because.", "It is not.")
    assert [message["content"] for message in asked] == GOLDEN["messages"]


def test_every_reply_has_the_official_label() -> None:
    """Where the official script takes a label that its own table does not know, it stops with a KeyError."""
    assert len(REPLIES) >= 500
    for reply, label in REPLIES:
        points = POINTS.get(MIRRORED.get(label or "", label or ""))
        if points is None:
            with pytest.raises(InfrastructureError):
                points_of_first(reply)
        else:
            assert points_of_first(reply) == points, reply


class Judge:
    def __init__(self, by_first: dict[str, str]) -> None:
        self.by_first = by_first

    async def reply(self, messages: list[Message]) -> str:
        return self.by_first["ours" if "ours" in messages[-1]["content"].partition("Assistant B")[0] else "theirs"]


async def test_every_question_has_the_official_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "FIRST_PAUSE_S", 0.0)
    games: list[tuple[int, int, list[float] | None]] = GOLDEN["games"]
    samples = [
        await played(REPLIES[first][0], REPLIES[second][0], f"q{n}") for n, (first, second, _) in enumerate(games)
    ]
    for sample, (_, _, points) in zip(samples, games, strict=True):
        if points is None:
            assert sample.is_undecided
        else:
            assert sample.score == pytest.approx(sum(points) / len(points))
            assert sample.weight == len(points)

    official = [point for _, _, points in games for point in points or ()]
    result = measure(samples, len(games), 1, 0.0)
    assert result.accuracy == pytest.approx(math.fsum(official) / len(official))
    assert result.num_undecided == sum(points is None for _, _, points in games)


async def played(baseline_first: str, ours_first: str, question: str) -> Sample:
    turn = Turn((1,), (), "ours", StopReason.END_OF_TURN)
    trace: Any = Trace("t", question, (0,), "", (turn,), Outcome.ANSWERED)
    judge = arena_judge(Judge({"theirs": baseline_first, "ours": ours_first}), {question: "theirs"})
    return Sample.of(await judged(judge, Problem(question, "Why?", ""), trace))
