"""Arena-Hard v0.1: a judge model of the user's compares each response with a baseline's response.

Each pair is two games with the places exchanged, so that a judge's preference for a place cancels out. The score is the
share of points won, where a clear win counts three times: with two players this share is the Bradley-Terry win rate
that Arena-Hard reports, up to style control.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from rstar2.engine.protocol import Message
from rstar2.environments import Judgement
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Problem, Trace, Verdict
from rstar2.rollout.judge import Judge

MAX_AT_ONCE = 16
"""The most requests in flight: hosted judges refuse more."""
_ID_COLUMNS = ("id", "uid", "question_id")

SYSTEM_TEXT = """Please act as an impartial judge and evaluate the quality of the responses provided by two AI assistants to the user prompt displayed below. You will be given assistant A's answer and assistant B's answer. Your job is to evaluate which assistant's answer is better.

Begin your evaluation by generating your own answer to the prompt. You must provide your answers before judging any answers.

When evaluating the assistants' answers, compare both assistants' answers with your answer. You must identify and correct any mistakes or inaccurate information.

Then consider if the assistant's answers are helpful, relevant, and concise. Helpful means the answer correctly responds to the prompt or follows the instructions. Note when user prompt has any ambiguity or more than one interpretation, it is more helpful and appropriate to ask for clarifications or more information from the user than providing an answer based on assumptions. Relevant means all parts of the response closely connect or are appropriate to what is being asked. Concise means the response is clear and not verbose or excessive.

Then consider the creativity and novelty of the assistant's answers when needed. Finally, identify any missing important information in the assistants' answers that would be beneficial to include when responding to the user prompt.

After providing your explanation, you must output only one of the following choices as your final verdict with a label:

1. Assistant A is significantly better: [[A>>B]]
2. Assistant A is slightly better: [[A>B]]
3. Tie, relatively the same: [[A=B]]
4. Assistant B is slightly better: [[B>A]]
5. Assistant B is significantly better: [[B>>A]]

Example output: "My final verdict is tie: [[A=B]]"."""  # noqa: E501

_LABELS = (re.compile(r"\[\[([AB<>=]+)\]\]"), re.compile(r"\[([AB<>=]+)\]"))
"""Patterns of a verdict's label; the second counts only if the first finds nothing."""
_POINTS_OF_A = {
    **dict.fromkeys(("A>>B", "B<<A"), (1.0, 3.0)),
    **dict.fromkeys(("A>B", "B<A"), (1.0, 1.0)),
    **dict.fromkeys(("A=B", "B=A"), (0.5, 1.0)),
    **dict.fromkeys(("B>A", "A<B"), (0.0, 1.0)),
    **dict.fromkeys(("B>>A", "A<<B"), (0.0, 3.0)),
}
"""For each label, the points of A and the weight of the game."""


class Chat(Protocol):
    async def reply(self, messages: list[Message]) -> str: ...


def arena_judge(chat: Chat, baseline: Mapping[str, str]) -> Judge:
    places = asyncio.Semaphore(MAX_AT_ONCE)

    async def play(question: str, first: str, second: str) -> tuple[float, float]:
        async with places:
            reply = await chat.reply(game(question, first, second))
        return points_of_first(reply)

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        other = baseline.get(problem.id)
        if other is None:
            raise UserError(f"the judge's baseline has no answer to {problem.id}: it needs one for each question")
        response = trace.final_text
        (as_first, first_weight), (other_points, second_weight) = await asyncio.gather(
            play(problem.problem, response, other), play(problem.problem, other, response)
        )
        weight = first_weight + second_weight
        score = (as_first * first_weight + (1.0 - other_points) * second_weight) / weight
        return Judgement(Verdict.RIGHT if score > 0.5 else Verdict.WRONG, score=score, weight=weight)

    return Judge(decide)


def game(question: str, first: str, second: str) -> list[Message]:
    shown = (
        f"<|User Prompt|>\n{question}\n\n"
        f"<|The Start of Assistant A's Answer|>\n{first}\n<|The End of Assistant A's Answer|>\n\n"
        f"<|The Start of Assistant B's Answer|>\n{second}\n<|The End of Assistant B's Answer|>"
    )
    return [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": shown}]


def points_of_first(reply: str) -> tuple[float, float]:
    """Points of assistant A and the weight of the game, by the last label; a reply without one, or whose last label
    says nothing (`[[A]]`), is retried."""
    found = next(filter(None, (label.findall(reply.upper()) for label in _LABELS)), [""])
    points = _POINTS_OF_A.get(found[-1])
    if points is None:
        raise InfrastructureError(f"the judge gave no verdict such as [[A>B]], but {found[-1] or 'none at all'}")
    return points


@dataclass(frozen=True, slots=True)
class ChatClient:
    base_url: str
    model: str
    api_key: str | None = None
    deadline_s: float = 600.0
    max_tokens: int = 4096

    async def reply(self, messages: Sequence[Message]) -> str:
        """The judge's reply. InfrastructureError for a failure that may pass, UserError for one that will not."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        body = {"model": self.model, "messages": list(messages), "temperature": 0.0, "max_tokens": self.max_tokens}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        timeout = aiohttp.ClientTimeout(total=self.deadline_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(url, json=body) as response,
            ):
                status, said = response.status, await response.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise InfrastructureError(f"the judge at {self.base_url} cannot be reached: {error!r}") from error
        if status in (400, 401, 403, 404):
            raise UserError(f"the judge at {self.base_url} refuses (HTTP {status}): {said[:300]}")
        if status != 200:
            raise InfrastructureError(f"the judge at {self.base_url} answered HTTP {status}")
        try:
            content = json.loads(said)["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InfrastructureError(f"the judge at {self.base_url} sent no chat completion: {error!r}") from error
        if not isinstance(content, str):
            raise InfrastructureError(f"the judge at {self.base_url} sent an empty reply")
        return content


def read_baseline(path: Path) -> dict[str, str]:
    """Reads the baseline's answers: JSON Lines with a question's id and an `answer`, or Arena-Hard's own files of model
    answers."""
    answers: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--judge-baseline: {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row_id = next(str(row[name]) for name in _ID_COLUMNS if name in row)
            answers[row_id] = _answer(row)
        except (ValueError, KeyError, IndexError, TypeError, StopIteration):
            raise UserError(
                f"--judge-baseline: {path}, line {number}, needs an id ({', '.join(_ID_COLUMNS)}) and an answer"
            ) from None
    return answers


def _answer(row: dict[str, Any]) -> str:
    if "choices" in row:
        content = row["choices"][0]["turns"][0]["content"]
    elif "messages" in row:
        content = row["messages"][-1]["content"]
    else:
        content = row["answer"]
    if isinstance(content, dict):
        content = content["answer"]
    if not isinstance(content, str):
        raise TypeError("an answer is a text")
    return content
