"""Programs judged by tests: problems for the built-in environment `code`, and a warm-up for a tiny model.

    cd examples/environments
    python code_tests.py
    rstar2 train code_tests.toml

It writes two files. `code_problems.jsonl` holds tasks with tests, in the plain format of docs/environments-code.md; the
environment asks for a program, runs the tests in the sandbox, and never shows them. `code_warmup.jsonl` shows how a
program is answered. Its programs are right by chance only, so which one a task needs is learnt from the tests.
"""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

from habits import habitual

from rstar2.environments.code import read_task

FIRST = {
    "the sum of x and y": "x + y",
    "the product of x and y": "x * y",
    "the larger of x and y": "max(x, y)",
    "the smaller of x and y": "min(x, y)",
}
THEN = {", doubled": "2 * ({})", ", squared": "({}) ** 2", ", negated": "-({})"}
"""What is asked, and the expression that computes it. Each of `FIRST` goes with each of `THEN`."""
WORDINGS = ("Write a function f(x, y) that returns {}.", "Define f(x, y) as {}.", "Program f(x, y): {}.")
ARGUMENTS = ((2, 5), (7, 3), (-4, 6))
"""What the tests call each function with: no two of the programs agree on all of them."""


def program(first: str, then: str) -> str:
    return f"def f(x, y):\n    return {THEN[then].format(FIRST[first])}"


def problem(wording: str, first: str, then: str) -> dict[str, Any]:
    """A row: the prompt, the tests, and a program that passes them."""
    names: dict[str, Any] = {}
    exec(program(first, then), names)
    tests = [f"assert f({x}, {y}) == {names['f'](x, y)}" for x, y in ARGUMENTS]
    return {"prompt": wording.format(first + then), "tests": tests, "solution": program(first, then)}


def warm_up(rng: random.Random) -> dict[str, Any]:
    """A question as the environment asks it, and a program that is right as often as chance has it."""
    wording, first, then = rng.choice(WORDINGS), rng.choice(list(FIRST)), rng.choice(list(THEN))
    question = read_task(problem(wording, first, then), "warm-up").question
    guessed = program(habitual(rng, FIRST, first), habitual(rng, THEN, then))
    answer = f"<reason></reason>\n<answer>\n```python\n{guessed}\n```\n</answer>"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def write(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    rng = random.Random(0)
    write("code_problems.jsonl", [problem(*choice) for choice in product(WORDINGS, FIRST, THEN)])
    write("code_warmup.jsonl", [warm_up(rng) for _ in range(3000)])
