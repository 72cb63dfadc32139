"""Curates problems: selects those that are fit for reinforcement learning, and says why the others are not. Pure.

The rules are the report's (only integer answers, nothing that occurs in a benchmark, nothing that is already solved)
and those that any set needs before its golds can be trusted (no two golds for one text, no text twice, no missing
figure). Every problem is either kept or rejected for one reason, the first of `Reason` that holds.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.data.decontaminate import BenchmarkGrams
from rstar2.data.pass_rates import PassRate
from rstar2.data.unsuitable import asks_several, is_composite, is_foreign, is_integer, needs_figure
from rstar2.grading import last_box, parse_integer
from rstar2.records import Problem

Fault = tuple["Reason", str]

_SPACING = re.compile(r"\s+|\$|\\[,;:! ]|\\[()\[\]]|\\(?:left|right|displaystyle|quad|qquad)(?![a-z])")


class Reason(StrEnum):
    """Why a problem is rejected, in the order in which the reasons are checked."""

    COMPOSITE = "composite"
    """The gold has several parts, or the text asks several questions."""
    NOT_INTEGER = "not_integer"
    NOT_POSITIVE = "not_positive"
    FIGURE = "figure"
    """The text refers to a figure that it does not have."""
    NOT_ENGLISH = "not_english"
    DISPUTED = "disputed"
    """The same text has another gold elsewhere in the input; none of them can be trusted."""
    DUPLICATE = "duplicate"
    """The same text occurred before."""
    CONTAMINATED = "contaminated"
    SOLVED = "solved"
    """The run solved the problem every time."""
    UNSOLVED = "unsolved"
    """The run never solved the problem."""


@dataclass(frozen=True, slots=True)
class CurationRules:
    min_overlap_share: float = 0.0
    """The share of a benchmark problem's word runs (n-grams) that must occur in a problem; 0 means that one is
    enough."""
    min_samples: int = 8
    """A pass rate over fewer scored rollouts than this decides nothing. The default is the report's."""
    drops_unsolved: bool = False
    needs_positive: bool = False
    """Whether an answer must be at least 1, as the report has it."""


@dataclass(frozen=True, slots=True)
class Rejected:
    problem: Problem
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Curated:
    kept: tuple[Problem, ...]
    rejected: tuple[Rejected, ...] = field(default=())

    @property
    def num_rejected(self) -> dict[Reason, int]:
        counts = Counter(each.reason for each in self.rejected)
        return {reason: counts[reason] for reason in Reason if counts[reason]}


def curate(
    problems: Sequence[Problem],
    benchmarks: BenchmarkGrams | None = None,
    pass_rates: Mapping[str, PassRate] | None = None,
    rules: CurationRules | None = None,
) -> Curated:
    """Curates problems, and keeps their order. Give all sets that will be trained on together, so that duplicates
    between them are found."""
    rules = rules or CurationRules()
    texts = [text_key(problem.problem) for problem in problems]
    golds = _golds_by_text(problems, texts)
    first_ids: dict[str, str] = {}
    kept: list[Problem] = []
    rejected: list[Rejected] = []
    for problem, text in zip(problems, texts, strict=True):
        fault = _own_fault(problem, rules)
        if fault is None and len(golds[text]) > 1:
            fault = Reason.DISPUTED, "golds " + ", ".join(sorted(golds[text]))
        if fault is None and text in first_ids:
            fault = Reason.DUPLICATE, f"of {first_ids[text]}"
        if fault is None:
            first_ids[text] = problem.id
            fault = _contamination(problem, benchmarks, rules) or _difficulty(problem, pass_rates or {}, rules)
        if fault is None:
            kept.append(problem)
        else:
            rejected.append(Rejected(problem, *fault))
    return Curated(tuple(kept), tuple(rejected))


def text_key(text: str) -> str:
    """A key that is equal for texts that differ only in spaces, case, dollars and LaTeX's spacing; signs and operators
    count, because `3+4` and `3-4` are two problems."""
    return _SPACING.sub("", text.casefold())


def _golds_by_text(problems: Sequence[Problem], texts: Sequence[str]) -> dict[str, set[str]]:
    """The integer golds of each text; several are a dispute. A gold that is no integer is rejected for that alone."""
    golds: dict[str, set[str]] = {}
    for problem, text in zip(problems, texts, strict=True):
        integer = parse_integer(last_box(problem.answer) or problem.answer)
        golds.setdefault(text, set()).update(() if integer is None else (integer,))
    return golds


def _own_fault(problem: Problem, rules: CurationRules) -> Fault | None:
    if is_composite(problem.answer):
        return Reason.COMPOSITE, "the answer has several parts"
    if not is_integer(problem.answer):
        return Reason.NOT_INTEGER, ""
    if rules.needs_positive and not _is_positive(problem.answer):
        return Reason.NOT_POSITIVE, ""
    if asks_several(problem.problem):
        return Reason.COMPOSITE, "the text asks several questions"
    if needs_figure(problem.problem):
        return Reason.FIGURE, ""
    if is_foreign(problem.problem):
        return Reason.NOT_ENGLISH, ""
    return None


def _is_positive(gold: str) -> bool:
    integer = parse_integer(last_box(gold) or gold)
    return integer is not None and integer != "0" and not integer.startswith("-")


def _contamination(problem: Problem, benchmarks: BenchmarkGrams | None, rules: CurationRules) -> Fault | None:
    overlap = None if benchmarks is None else benchmarks.find(problem.problem, rules.min_overlap_share)
    if overlap is None:
        return None
    return Reason.CONTAMINATED, f"{overlap.share:.0%} of {overlap.benchmark} {overlap.problem_id}"


def _difficulty(problem: Problem, pass_rates: Mapping[str, PassRate], rules: CurationRules) -> Fault | None:
    rate = pass_rates.get(problem.id)
    if rate is None or rate.num_scored < rules.min_samples:
        return None
    if rate.num_right == rate.num_scored:
        return Reason.SOLVED, f"{rate.num_right} of {rate.num_scored}"
    if rate.num_right == 0 and rules.drops_unsolved:
        return Reason.UNSOLVED, f"0 of {rate.num_scored}"
    return None
