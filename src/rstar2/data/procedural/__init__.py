"""Problems and conversations that are generated here: nothing to download, any number of them, one result for each
stream.

Promise: a stream is named by a string; the same name gives the same rows, two names give independent ones. Problems
cannot be solved by mental arithmetic and are easy with Python; every gold answer is an integer. Programming tasks have
tests in place of a gold answer.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from rstar2.data.conversation import Conversation
from rstar2.data.procedural.families import FAMILIES
from rstar2.data.procedural.programs import draw_program_habits, program_conversation, program_row, question_of
from rstar2.data.procedural.stories import story_conversation
from rstar2.data.procedural.tool_format import MORE_PROGRAMS, PROGRAMS, draw_habits, format_conversation
from rstar2.data.procedural.word_problems import make_word_problem
from rstar2.errors import UserError
from rstar2.records import Problem

_MAKERS: dict[str, Callable[[random.Random], tuple[str, int]]] = {
    **{name: family.make for name, family in FAMILIES.items()},
    "word_problems": lambda rng: make_word_problem(rng, rng.randint(1, 3)),
    "long_word_problems": lambda rng: make_word_problem(rng, rng.randint(3, 6)),
}
PROBLEM_TASKS = tuple(_MAKERS)
PROGRAM_TASK = "small_programs"
"""The procedural task whose problems are for the environment `code`."""
_PROGRAMS = {"tool_format": PROGRAMS, "wide_tool_format": PROGRAMS + MORE_PROGRAMS}
CONVERSATION_TASKS = (*_PROGRAMS, "stories", "program_format")
MAX_REPEATED = 1000
"""After this many consecutive draws without a new problem, the family counts as used up."""


def generate(tasks: Sequence[str], num_problems: int, stream: str) -> tuple[Problem, ...]:
    """Generates problems of these families in turn, no two with the same text."""
    _check(tasks, (*PROBLEM_TASKS, PROGRAM_TASK), "problems")
    rng = random.Random(stream)
    texts: set[str] = set()
    problems: list[Problem] = []
    num_repeated = 0
    while len(problems) < num_problems:
        task = tasks[len(problems) % len(tasks)]
        question, answer, row = _draw(task, rng)
        num_repeated = num_repeated + 1 if question in texts else 0
        if num_repeated > MAX_REPEATED:
            raise UserError(f"{task} has too few different problems for {num_problems}: ask for fewer")
        if question not in texts:
            texts.add(question)
            problem_id = f"{stream}/{len(problems)}"
            problems.append(Problem(problem_id, question, answer, source=f"procedural/{task}", row=row))
    return tuple(problems)


def _draw(task: str, rng: random.Random) -> tuple[str, str, dict[str, Any]]:
    """Draws a question, its gold answer and its row, which is empty unless the problem is more than the question."""
    if task == PROGRAM_TASK:
        row = program_row(rng)
        return question_of(row), "", row
    question, answer = _MAKERS[task](rng)
    return question, str(answer), {}


def conversations(task: str, num_conversations: int, stream: str) -> tuple[Conversation, ...]:
    _check([task], CONVERSATION_TASKS, "conversations")
    rng = random.Random(stream)
    if task == "stories":
        return tuple(story_conversation(rng, f"{stream}/{index}") for index in range(num_conversations))
    if task == "program_format":
        usual = draw_program_habits(rng)
        return tuple(program_conversation(rng, usual, f"{stream}/{index}") for index in range(num_conversations))
    programs = _PROGRAMS[task]
    habits = draw_habits(rng, programs)
    return tuple(format_conversation(rng, programs, habits, f"{stream}/{index}") for index in range(num_conversations))


def _check(tasks: Sequence[str], known: Sequence[str], what: str) -> None:
    if unknown := [task for task in tasks if task not in known]:
        raise UserError(f"there is no procedural task {unknown[0]!r} that makes {what}; there are {', '.join(known)}")


__all__ = ["CONVERSATION_TASKS", "PROBLEM_TASKS", "conversations", "generate"]
