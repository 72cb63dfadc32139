"""Multiple-choice questions (GPQA): the choices are shuffled, and the gold is a letter.

The order is drawn from the question's id alone, so it is the same on every machine and in every run.
"""

import random
from collections.abc import Iterable, Iterator

from rstar2.data.cells import as_text, find, optional_text, require
from rstar2.data.problem_rows import ID_COLUMNS, content_id
from rstar2.data.rows import Row
from rstar2.records import Problem

LETTERS = "ABCD"
_WRONG_COLUMNS = tuple(f"incorrect answer {number}" for number in (1, 2, 3))


def choice_problems(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    """Makes problems from GPQA's own columns, or from rows whose text already has the choices and whose answer is a
    letter."""
    for row in rows:
        question = as_text(require(row, ("question", "problem"), "question")[1], row, "question")
        found_id = find(row, ID_COLUMNS)
        row_id = str(found_id[1]) if found_id else content_id(Problem("", question, ""))
        subject = optional_text(row, ("high-level domain", "subject"))
        right = find(row, ("correct answer",))
        if right is None:
            letter = as_text(require(row, ("answer",), "answer")[1], row, "answer")
            yield Problem(row_id, question, letter, source, subject=subject)
            continue
        wrong = [as_text(require(row, (name,), name)[1], row, name) for name in _WRONG_COLUMNS]
        gold = as_text(right[1], row, "correct answer")
        choices = [gold, *wrong]
        random.Random(f"choices/{row_id}").shuffle(choices)
        listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True))
        asked = f"{question}\n\n{listed}\n\nAnswer with the letter of the right choice."
        yield Problem(row_id, asked, LETTERS[choices.index(gold)], source, subject=subject)
