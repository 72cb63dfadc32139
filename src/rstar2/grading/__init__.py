"""Grades an answer against its gold: right, wrong, no answer or undecided, always within a deadline.

Promise: a wrong answer is never called right by a trick of notation; a hostile answer neither hangs the grader nor
escapes its zero; integers are exact and need no executor; infrastructure faults are errors, never verdicts.
May import: records, sandbox.
"""

from rstar2.grading.decide import Grade, Method, SymbolicComparison, choice_letter, decide
from rstar2.grading.extract import (
    AnswerPlace,
    count_answer_blocks,
    count_balanced_answer_blocks,
    extract_answer,
    last_box,
)
from rstar2.grading.grader import GRADING_DEADLINE_S, Grader
from rstar2.grading.integers import parse_integer

__all__ = [
    "GRADING_DEADLINE_S",
    "AnswerPlace",
    "Grade",
    "Grader",
    "Method",
    "SymbolicComparison",
    "choice_letter",
    "count_answer_blocks",
    "count_balanced_answer_blocks",
    "decide",
    "extract_answer",
    "last_box",
    "parse_integer",
]
