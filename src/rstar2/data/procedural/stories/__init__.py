"""Conversations about small everyday sums: a story with numbers, a program that works the answer out, the answer.

They show how a text becomes a program, sentence by sentence, each sum in its own variable, and how its output becomes
an answer. Promise: no story is one of `word_problems` or of a benchmark, so they give no solution to problems that are
trained on or measured later; every answer is an integer.
"""

import random
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.data.procedural.stories.story import FilledStory, Story, all_stories
from rstar2.data.procedural.tool_format import TOOL_NAME

OPENINGS = ("Let me work this out in Python.", "I will write this down step by step.", "A short program will do.")
CLOSINGS = ("The program gives the result.", "So that is the result.", "This is what was asked for.")


def story_conversation(rng: random.Random, conversation_id: str) -> Conversation:
    story = rng.choice(all_stories()).fill(rng)
    code = f"{story.program}\nprint({story.asked})"
    call = {"type": "function", "function": {"name": TOOL_NAME, "arguments": {"code": code, "input": ""}}}
    result = _value(story)
    messages: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": story.question},
        {"role": "assistant", "content": f"<reason> {rng.choice(OPENINGS)}</reason>", "tool_calls": [call]},
        {"role": "tool", "content": str(result)},
        {
            "role": "assistant",
            "content": f"<reason> {rng.choice(CLOSINGS)}</reason>\n<answer>\\boxed{{{result}}}</answer>",
        },
    )
    return Conversation(messages, id=conversation_id, source="procedural/stories")


def _value(story: FilledStory) -> int:
    """The value of the story's program, which is our own, so it may run here."""
    values: dict[str, int] = {}
    exec(story.program, {}, values)
    return values[story.asked]


__all__ = ["FilledStory", "Story", "all_stories", "story_conversation"]
