"""One response against the baseline's: two games, the places changed between them, so that a judge's preference for a
place cancels out.

The score is the share of points won, where a game that was decided clearly counts three times, as in Arena-Hard v0.1:
with two players the share is the Bradley-Terry win rate that it reports, up to style control.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

from rstar2.engine.protocol import Message
from rstar2.errors import InfrastructureError, UserError
from rstar2.evals.arena.client import MAX_AT_ONCE
from rstar2.evals.final_text import final_text
from rstar2.evals.judgement import Judge, Judgement
from rstar2.records import Problem, Trace, Verdict

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
"""The second counts only where the first finds nothing."""
_POINTS_OF_A = {
    **dict.fromkeys(("A>>B", "B<<A"), (1.0, 3.0)),
    **dict.fromkeys(("A>B", "B<A"), (1.0, 1.0)),
    **dict.fromkeys(("A=B", "B=A"), (0.5, 1.0)),
    **dict.fromkeys(("B>A", "A<B"), (0.0, 1.0)),
    **dict.fromkeys(("B>>A", "A<<B"), (0.0, 3.0)),
}
"""Points of A, and the weight of the game."""


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
        response = final_text(trace)
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
    says nothing (`[[A]]`), is asked for again."""
    found = next(filter(None, (label.findall(reply.upper()) for label in _LABELS)), [""])
    points = _POINTS_OF_A.get(found[-1])
    if points is None:
        raise InfrastructureError(f"the judge gave no verdict such as [[A>B]], but {found[-1] or 'none at all'}")
    return points
