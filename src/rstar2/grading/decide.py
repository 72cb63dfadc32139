"""What can be decided without computer algebra: integers, equal texts, words, choices, units and hostile answers.

Pure and linear, so it runs in the caller's process at any load; what is left over comes back as a `Comparison`.
"""

from dataclasses import dataclass

from rstar2.grading.choice import choice_letter
from rstar2.grading.extract import last_box
from rstar2.grading.grade import Grade, Method
from rstar2.grading.integers import read_integers, same_integers
from rstar2.grading.latex import bases_conflict, is_prose, skeleton, split_unit, tidy, units_conflict
from rstar2.grading.screen import MAX_CHARS, is_evaluated, why_refused
from rstar2.records import Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values, tidied and without units, that only computer algebra can tell apart."""

    answer: str
    gold: str


def decide(answer: str, gold: str, *, evaluated_only: bool = False) -> Grade | Comparison:
    r"""Grade `answer`, or say what must be compared. With `evaluated_only`, an answer to an integer gold must be a
    number as such: `123 \cdot 456` is then wrong without being computed. Some sets put their golds in a box."""

    def graded(is_right: bool, method: Method, message: str = "") -> Grade:
        return Grade(Verdict.RIGHT if is_right else Verdict.WRONG, answer, method, message)

    if len(answer) > MAX_CHARS + 4 * len(gold):
        return graded(False, Method.SCREEN, "it is far longer than the gold")
    answer_integers, gold_integers = read_integers(answer), read_integers(gold)
    if answer_integers and gold_integers:
        return graded(same_integers(answer_integers, gold_integers), Method.INTEGERS)
    if (boxed := last_box(gold)) is not None:
        return decide(answer, boxed, evaluated_only=evaluated_only)
    if answer.strip() == gold.strip():
        return graded(True, Method.TEXT)

    tidy_answer, tidy_gold = tidy(answer), tidy(gold)
    bones, gold_bones = skeleton(tidy_answer), skeleton(tidy_gold)
    if bones == gold_bones:
        return graded(True, Method.TEXT)

    of_answer, of_gold = split_unit(tidy_answer), split_unit(tidy_gold)
    if units_conflict(of_answer, of_gold) or bases_conflict(bones, gold_bones):
        return graded(False, Method.UNITS, "units or numeral bases differ")
    answer_integers, gold_integers = read_integers(of_answer.value), read_integers(of_gold.value)
    if answer_integers and gold_integers:
        return graded(same_integers(answer_integers, gold_integers), Method.INTEGERS)
    if of_answer.value == of_gold.value:
        return graded(True, Method.TEXT)

    letter, gold_letter = choice_letter(tidy_answer), choice_letter(tidy_gold)
    if letter and gold_letter:
        return graded(letter == gold_letter, Method.CHOICE)
    if is_prose(skeleton(of_gold.value)):
        return graded(bones.casefold() == gold_bones.casefold(), Method.TEXT)

    if reason := why_refused(of_answer.value, of_gold.value):
        return graded(False, Method.SCREEN, reason)
    if evaluated_only and gold_integers and not is_evaluated(of_answer.value):
        return graded(False, Method.SCREEN, "it leaves a computation to the grader")
    return Comparison(of_answer.value, of_gold.value)
