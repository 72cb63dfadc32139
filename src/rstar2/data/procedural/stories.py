"""Conversations about small everyday sums: a story with numbers, a program that works the answer out, the answer.

They show how words become a program, step by step under names of their own, and how its output becomes an answer. The
stories are of kinds that no problem family here and no benchmark has, so nothing that is trained or measured later is
worked out in them.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.data.procedural.tool_format import TOOL_NAME

NAMES = (
    "Amina", "Boris", "Chen", "Dalia", "Emeka", "Freya", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mateo",
    "Nadia", "Oskar", "Priya", "Quinn", "Rosa", "Samir", "Tala", "Umar", "Vera", "Wei", "Yara", "Zoltan",
)  # fmt: skip
THINGS = (
    "apples", "books", "candles", "marbles", "stamps", "pencils", "shells", "buttons", "cookies", "tulips", "bricks",
    "postcards", "lemons", "tickets", "beads", "eggs", "ribbons", "coins", "stickers", "plates",
)  # fmt: skip
OPENINGS = ("Let me work this out in Python.", "I will write this down step by step.", "A short program will do.")
CLOSINGS = ("The program gives the result.", "So that is the result.", "This is what was asked for.")


@dataclass(frozen=True, slots=True)
class Story:
    """`numbers` says from where to where each number is drawn, or of which earlier one it is a multiple; `steps` are
    the lines of the program, the last of which is asked for."""

    text: str
    numbers: Mapping[str, tuple[int, int] | tuple[int, int, str]]
    steps: tuple[tuple[str, str], ...]


STORIES = (
    Story(
        "{who} has {a} {what} and finds {b} more. How many {what} does {who} have now?",
        {"a": (3, 90), "b": (2, 60)},
        (("total", "{a} + {b}"),),
    ),
    Story(
        "There were {a} {what} on a shelf. {who} took {b} of them away. How many were left?",
        {"b": (2, 40), "a": (41, 120)},
        (("left", "{a} - {b}"),),
    ),
    Story(
        "{who} packs {a} boxes with {b} {what} each. How many {what} is that in all?",
        {"a": (2, 30), "b": (2, 40)},
        (("total", "{a} * {b}"),),
    ),
    Story(
        "{who} shares {a} {what} equally among {b} friends. How many does each friend get?",
        {"b": (2, 12), "a": (2, 20, "b")},
        (("each", "{a} // {b}"),),
    ),
    Story(
        "{who} buys {a} {what} at {b} dollars each and pays with {c} dollars. How much change does {who} get?",
        {"a": (2, 9), "b": (2, 9), "c": (90, 150)},
        (("cost", "{a} * {b}"), ("change", "{c} - cost")),
    ),
    Story(
        "{who} earns {a} dollars an hour and works {b} hours a day. What does {who} earn in {c} days?",
        {"a": (8, 30), "b": (3, 9), "c": (2, 14)},
        (("pay_per_day", "{a} * {b}"), ("pay", "pay_per_day * {c}")),
    ),
    Story(
        "{who} has {a} {what}. {other} has {b} times as many. How many {what} do they have together?",
        {"a": (3, 40), "b": (2, 6)},
        (("others", "{a} * {b}"), ("together", "{a} + others")),
    ),
    Story(
        "{who} had {a} {what}, gave {b} to {other} and then bought {c} more. How many does {who} have in the end?",
        {"b": (2, 20), "a": (25, 80), "c": (2, 30)},
        (("after_giving", "{a} - {b}"), ("end", "after_giving + {c}")),
    ),
    Story(
        "A tray holds {a} rows of {b} {what}. {who} fills {c} trays and drops {d} {what}. How many are left?",
        {"a": (2, 8), "b": (2, 9), "c": (2, 9), "d": (1, 7)},
        (("per_tray", "{a} * {b}"), ("filled", "per_tray * {c}"), ("left", "filled - {d}")),
    ),
    Story(
        "{who} reads {a} pages every weekday and {b} pages on each of the two days of the weekend. "
        "How many pages does {who} read in {c} weeks?",
        {"a": (5, 40), "b": (10, 60), "c": (2, 8)},
        (("weekdays", "{a} * 5"), ("weekend", "{b} * 2"), ("pages", "(weekdays + weekend) * {c}")),
    ),
    Story(
        "A bus leaves with {a} people. At the first stop {b} get off and {c} get on, at the second stop {d} get off. "
        "How many people are on the bus?",
        {"b": (2, 12), "d": (2, 12), "a": (30, 60), "c": (2, 20)},
        (("after_first", "{a} - {b} + {c}"), ("after_second", "after_first - {d}")),
    ),
    Story(
        "{who} is {a} years old. {other} is {b} years older. How old will {other} be in {c} years?",
        {"a": (5, 50), "b": (2, 20), "c": (2, 15)},
        (("age_now", "{a} + {b}"), ("age_then", "age_now + {c}")),
    ),
    Story(
        "A garden is {a} meters long and {b} meters wide. A fence costs {c} dollars a meter. "
        "What does a fence all around it cost?",
        {"a": (5, 40), "b": (3, 30), "c": (2, 15)},
        (("around", "2 * ({a} + {b})"), ("cost", "around * {c}")),
    ),
    Story(
        "{a}% of the {b} {what} in a store are red. How many {what} are not red?",
        {"a": (1, 9, "ten"), "b": (2, 30, "hundred")},
        (("red", "{b} * {a} // 100"), ("not_red", "{b} - red")),
    ),
    Story(
        "A coat costs {b} dollars. This week it is {a}% off. What does it cost this week?",
        {"a": (1, 8, "ten"), "b": (1, 9, "hundred")},
        (("saved", "{b} * {a} // 100"), ("price", "{b} - saved")),
    ),
    Story(
        "{who} drives for {a} hours at {b} kilometers an hour and then for {c} hours at {d} kilometers an hour. "
        "How far does {who} drive?",
        {"a": (1, 6), "b": (40, 110), "c": (1, 6), "d": (40, 110)},
        (("first_part", "{a} * {b}"), ("second_part", "{c} * {d}"), ("distance", "first_part + second_part")),
    ),
    Story(
        "{who} saves {a} dollars a week for a bicycle that costs {c} dollars. {other} gives {b} weeks' worth of it as "
        "a present. For how many weeks must {who} save?",
        {"a": (5, 40), "c": (12, 30, "a"), "b": (2, 9)},
        (("present", "{a} * {b}"), ("missing", "{c} - present"), ("weeks", "missing // {a}")),
    ),
    Story(
        "Half of the {a} children in a school play football. A third of the others swim. How many children swim?",
        {"a": (3, 60, "six")},
        (("football", "{a} // 2"), ("others", "{a} - football"), ("swim", "others // 3")),
    ),
    Story(
        "{who} bakes {a} cakes and cuts each into {b} pieces. {c} guests eat {d} pieces each. "
        "How many pieces are left?",
        {"a": (6, 12), "b": (8, 12), "c": (4, 10), "d": (1, 4)},
        (("pieces", "{a} * {b}"), ("eaten", "{c} * {d}"), ("left", "pieces - eaten")),
    ),
    Story(
        "A pack of {a} {what} costs {b} dollars. What do {who} and {other} pay together if each of them needs {c} "
        "{what}?",
        {"a": (2, 10), "b": (2, 12), "c": (2, 8, "a")},
        (("packs_each", "{c} // {a}"), ("packs", "packs_each * 2"), ("cost", "packs * {b}")),
    ),
    Story(
        "{who} scored {a}, {b} and {c} points in three games. {other} scored {d} points in each of them. "
        "By how many points is {who} ahead?",
        {"a": (30, 60), "b": (30, 60), "c": (30, 60), "d": (5, 29)},
        (("first", "{a} + {b} + {c}"), ("second", "3 * {d}"), ("ahead", "first - second")),
    ),
    Story(
        "A tank holds {a} liters. A pump takes out {b} liters a minute, and a pipe lets in {c} liters a minute. "
        "How much is in the full tank after {d} minutes?",
        {"b": (11, 20), "c": (2, 10), "d": (2, 20), "a": (400, 900)},
        (("lost_per_minute", "{b} - {c}"), ("lost", "lost_per_minute * {d}"), ("left", "{a} - lost")),
    ),
    Story(
        "{who} has twice as many {what} as {other}, and {other} has {a} fewer than Pavel. Pavel has {b} {what}. "
        "How many do the three have in all?",
        {"a": (2, 20), "b": (25, 70)},
        (("second", "{b} - {a}"), ("first", "2 * second"), ("total", "first + second + {b}")),
    ),
    Story(
        "Tickets cost {a} dollars for adults and {b} dollars for children. A group of {c} adults and {d} children "
        "shares the cost equally among the adults. What does each adult pay?",
        {"c": (2, 9), "d": (2, 9, "c"), "a": (5, 20), "b": (2, 9)},
        (("adults", "{a} * {c}"), ("children", "{b} * {d}"), ("each", "(adults + children) // {c}")),
    ),
)
_UNITS = {"ten": 10, "hundred": 100, "six": 6}


def story_conversation(rng: random.Random, conversation_id: str) -> Conversation:
    story = rng.choice(STORIES)
    numbers = _draw(story, rng)
    who, other = rng.sample(NAMES, 2)
    question = story.text.format(who=who, other=other, what=rng.choice(THINGS), **numbers)
    lines = [f"{name} = {expression.format(**numbers)}" for name, expression in story.steps]
    asked = story.steps[-1][0]
    names = ", then ".join(name.replace("_", " ") for name, _ in story.steps)
    call = {
        "type": "function",
        "function": {"name": TOOL_NAME, "arguments": {"code": "\n".join([*lines, f"print({asked})"]), "input": ""}},
    }
    result = _value(lines, asked)
    messages: tuple[dict[str, Any], ...] = (
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": f"<reason> {rng.choice(OPENINGS)} First {names}.</reason>",
            "tool_calls": [call],
        },
        {"role": "tool", "content": str(result)},
        {
            "role": "assistant",
            "content": f"<reason> {rng.choice(CLOSINGS)}</reason>\n<answer>\\boxed{{{result}}}</answer>",
        },
    )
    return Conversation(messages, id=conversation_id, source="procedural/stories")


def _draw(story: Story, rng: random.Random) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, (least, most, *unit) in story.numbers.items():
        factor = rng.randint(least, most)
        numbers[name] = factor * (_UNITS.get(unit[0]) or numbers[unit[0]]) if unit else factor
    return numbers


def _value(lines: list[str], name: str) -> int:
    """The programs are our own, so they may run here."""
    values: dict[str, int] = {}
    exec("\n".join(lines), {}, values)
    return values[name]
