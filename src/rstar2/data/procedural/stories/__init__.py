"""Conversations about small everyday sums: a story with numbers, a program that works the answer out, the answer.

They show how words become a program, sentence by sentence, each sum under a name of its own, and how its output becomes
an answer.
Promise: no story is one of `word_problems` or of a benchmark, so nothing that is trained or measured later is worked
out in them; every answer is a whole number.
"""

import random
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.data.procedural.stories.story import Story, Told, all_stories
from rstar2.data.procedural.tool_format import TOOL_NAME

OPENINGS = ("Let me work this out in Python.", "I will write this down step by step.", "A short program will do.")
CLOSINGS = ("The program gives the result.", "So that is the result.", "This is what was asked for.")


def story_conversation(rng: random.Random, conversation_id: str) -> Conversation:
    told = rng.choice(all_stories()).tell(rng)
    code = f"{told.program}\nprint({told.asked})"
    call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": {"code": code, "input": ""}}}
    result = _value(told)
    messages: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": told.question},
        {"role": "assistant", "content": f"<reason> {rng.choice(OPENINGS)}</reason>", "tool_calls": [call]},
        {"role": "tool", "content": str(result)},
        {
            "role": "assistant",
            "content": f"<reason> {rng.choice(CLOSINGS)}</reason>\n<answer>\\boxed{{{result}}}</answer>",
        },
    )
    return Conversation(messages, id=conversation_id, source="procedural/stories")


def _value(told: Told) -> int:
    """The programs are our own, so they may run here."""
    values: dict[str, int] = {}
    exec(told.program, {}, values)
    return values[told.asked]


__all__ = ["Story", "Told", "all_stories", "story_conversation"]
