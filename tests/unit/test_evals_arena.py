"""Arena-Hard's games: labels, points, both orders; and what a judge that is out of order leaves."""

import json
from pathlib import Path

import pytest

from rstar2.engine.protocol import Message
from rstar2.errors import InfrastructureError, UserError
from rstar2.evals.arena import arena_judge, points_of_first, read_baseline
from rstar2.evals.sample import Sample
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn, Verdict
from rstar2.rollout import judge
from rstar2.rollout.judge import judged

pytestmark = pytest.mark.unit

PROBLEM = Problem("q1", "Why is the sky blue?", "")


def trace(text: str) -> Trace:
    turn = Turn((1, 2), (), text, StopReason.END_OF_TURN)
    return Trace("t", "q1", (0,), "", (turn,), Outcome.ANSWERED, metadata={"end_of_turn": "<|im_end|>"})


class Judge:
    """Prefers one text, wherever it stands; `label` makes it say something else."""

    def __init__(self, preferred: str, label: str = "") -> None:
        self.preferred, self.label = preferred, label
        self.shown: list[str] = []

    async def reply(self, messages: list[Message]) -> str:
        shown = messages[-1]["content"]
        self.shown.append(shown)
        is_first = self.preferred in shown.partition("Assistant B")[0]
        return self.label or f"My final verdict is [[{'A>>B' if is_first else 'B>A'}]]"


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("so [[A>B]]", (1.0, 1.0)),
        ("[[A>>B]]", (1.0, 3.0)),
        ("not [[A>B]] but [[B>>A]]", (0.0, 3.0)),
        ("a tie: [[A=B]]", (0.5, 1.0)),
    ],
)
def test_the_last_label_decides(reply: str, expected: tuple[float, float]) -> None:
    assert points_of_first(reply) == expected


def test_a_reply_without_a_label_is_no_verdict() -> None:
    with pytest.raises(InfrastructureError):
        points_of_first("Both are nice: [[C>D]]")


async def test_both_orders_are_played_and_the_thought_is_not_shown() -> None:
    chat = Judge("Rayleigh")
    scored = await judged(arena_judge(chat, {"q1": "Because."}), PROBLEM, trace("hm</reason>Rayleigh.<|im_end|>"))

    assert (scored.reward, scored.verdict) == (1.0, Verdict.RIGHT)
    assert Sample.of(scored).weight == 4.0, "a clear win counts three times, the other once"
    assert len(chat.shown) == 2
    assert not any("hm" in shown or "im_end" in shown for shown in chat.shown)


async def test_a_judge_who_prefers_a_place_makes_a_tie() -> None:
    scored = await judged(arena_judge(Judge("", "[[A>B]]"), {"q1": "Because."}), PROBLEM, trace("Rayleigh."))
    assert (scored.reward, scored.verdict) == (0.5, Verdict.WRONG)


async def test_a_judge_out_of_order_leaves_the_sample_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "FIRST_PAUSE_S", 0.0)
    chat = Judge("", "I cannot decide")
    scored = await judged(arena_judge(chat, {"q1": "Because."}), PROBLEM, trace("Rayleigh."))

    assert (scored.reward, scored.verdict) == (None, Verdict.UNDECIDED)
    assert "3 times" in scored.note
    assert len(chat.shown) == 2 * (judge.MAX_RETRIES + 1)


def test_baselines_are_read_in_both_forms(tmp_path: Path) -> None:
    own = {"id": "a", "answer": "x"}
    arena = {"question_id": "b", "choices": [{"turns": [{"content": "y"}]}]}
    newer = {"uid": "c", "messages": [{"content": "?"}, {"content": {"answer": "z"}}]}
    file = tmp_path / "baseline.jsonl"
    file.write_text("\n".join(map(json.dumps, (own, arena, newer))) + "\n")
    assert read_baseline(file) == {"a": "x", "b": "y", "c": "z"}

    file.write_text('{"id": "a"}\n')
    with pytest.raises(UserError, match="line 1"):
        read_baseline(file)
