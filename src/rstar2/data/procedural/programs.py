"""Small programming tasks with tests, and conversations that teach the format of a program as answer, and nothing else.

Invariant of the conversations: the right program follows a question exactly as often as by chance, one time in n with n
programs. A model can learn from them the form of an answer, and to copy a number from the question into the program,
but not which program answers which question. Each kind of question has habits, drawn at random for each set: some wrong
programs follow it more often than others, so that a model learns to look at the question before it answers.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.environments.code import read_task

NUM_TESTS = 4
Row = dict[str, Any]


def _numbers(rng: random.Random, k: int) -> list[Any]:
    """Numbers below and above k, and multiples of it: most wrong programs fail on one of them."""
    return [rng.randint(0, k - 1), k * rng.randint(2, 9), k * rng.randint(2, 9) + 1, rng.randint(k + 1, 10 * k)]


def _lists(rng: random.Random, k: int) -> list[Any]:
    """Lists that hold k never, once and more than once."""
    return [
        rng.sample([*(rng.randint(1, 2 * k) for _ in range(4)), *[k] * num_equal], 4 + num_equal)
        for num_equal in range(NUM_TESTS)
    ]


@dataclass(frozen=True, slots=True)
class ProgramFamily:
    wordings: tuple[str, ...]
    """Descriptions of what `f(x)` returns, with {k} for the number."""
    expression: str
    inputs: Callable[[random.Random, int], list[Any]] = _numbers


FAMILIES = (
    ProgramFamily(("x plus {k}", "the sum of x and {k}"), "x + {k}"),
    ProgramFamily(("x minus {k}", "x reduced by {k}"), "x - {k}"),
    ProgramFamily(("x times {k}", "the product of x and {k}"), "x * {k}"),
    ProgramFamily(("the remainder of x divided by {k}", "x modulo {k}"), "x % {k}"),
    ProgramFamily(("x divided by {k}, rounded down", "how often {k} fits into x"), "x // {k}"),
    ProgramFamily(("the larger of x and {k}", "x, but at least {k}"), "max(x, {k})"),
    ProgramFamily(("the smaller of x and {k}", "x, but at most {k}"), "min(x, {k})"),
    ProgramFamily(("the distance between x and {k}", "how far x is from {k}"), "abs(x - {k})"),
    ProgramFamily(("whether {k} divides x", "whether x is a multiple of {k}"), "x % {k} == 0"),
    ProgramFamily(("whether {k} is in the list x", "whether the list x contains {k}"), "{k} in x", _lists),
    ProgramFamily(("how often {k} is in the list x", "how many items of the list x are {k}"), "x.count({k})", _lists),
    ProgramFamily(
        ("the items of the list x above {k}", "the list x without items up to {k}"), "[y for y in x if y > {k}]", _lists
    ),
)
EXPRESSIONS = (*(family.expression for family in FAMILIES), "x + k", "x[{k}]")
"""The expressions of all programs. The last two raise an error, as a beginner's do."""


def program_row(rng: random.Random, family: ProgramFamily | None = None) -> Row:
    """A row in the plain format of the environment `code`."""
    family, k = family or rng.choice(FAMILIES), rng.randint(2, 999)
    function = eval(f"lambda x: {family.expression.format(k=k)}")  # our own text
    tests = [f"assert f({value!r}) == {function(value)!r}" for value in family.inputs(rng, k)]
    prompt = f"Write f(x), which returns {rng.choice(family.wordings).format(k=k)}."
    return {"prompt": prompt, "tests": tests, "solution": _program(family.expression, k)}


def question_of(row: Row) -> str:
    return read_task(row, "generated").question


def draw_program_habits(rng: random.Random) -> dict[str, list[float]]:
    """For each family, by its expression, how often each program follows its questions."""
    chance = 1 / len(EXPRESSIONS)
    habits = {}
    for family in FAMILIES:
        weights = [0.0 if text == family.expression else rng.expovariate(1) ** 3 for text in EXPRESSIONS]
        scale = (1 - chance) / sum(weights)
        habits[family.expression] = [weight * scale or chance for weight in weights]
    return habits


def program_conversation(rng: random.Random, habits: dict[str, list[float]], conversation_id: str) -> Conversation:
    family = rng.choice(FAMILIES)
    row = program_row(rng, family)
    (k,) = re.findall(r"\d+", row["prompt"])
    program = _program(rng.choices(EXPRESSIONS, habits[family.expression])[0], k)
    answer = f"<reason> {row['prompt']}</reason>\n<answer>\n```python\n{program}\n```\n</answer>"
    messages = ({"role": "user", "content": question_of(row)}, {"role": "assistant", "content": answer})
    return Conversation(messages, id=conversation_id, source="procedural/program_format")


def _program(expression: str, k: int | str) -> str:
    return f"def f(x):\n    return {expression.format(k=k)}"
