"""Tests whether a problem occurs in a benchmark: whether they share a run of eight words (an 8-gram).

This is the report's rule. Words are runs of letters and digits in lower case, so notation, line breaks and punctuation
hide nothing; LaTeX commands count as words on both sides. Texts of fewer than eight words match if they are equal as
words. A stock phrase ("the greatest integer less than or equal to") is such a run too; `min_share` asks for more than
one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rstar2.records import Problem

NUM_GRAM_WORDS = 8

Gram = tuple[str, ...]

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Overlap:
    """The benchmark problem that has most in common with a problem, and the share of its n-grams that this contains."""

    benchmark: str
    problem_id: str
    share: float


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def grams_of(text: str) -> set[Gram]:
    """Every run of eight words (8-gram); the whole text if it has fewer."""
    words = words_of(text)
    if len(words) < NUM_GRAM_WORDS:
        return {tuple(words)} if words else set()
    return set(zip(*(words[start:] for start in range(NUM_GRAM_WORDS)), strict=False))


class BenchmarkGrams:
    """The 8-grams of all problems of some benchmarks."""

    def __init__(self, benchmarks: Mapping[str, Iterable[Problem]]) -> None:
        self._problems: list[tuple[str, str, int]] = []
        self._holders: dict[Gram, list[int]] = {}
        for name, problems in benchmarks.items():
            for problem in problems:
                grams = grams_of(problem.problem)
                for gram in grams:
                    self._holders.setdefault(gram, []).append(len(self._problems))
                self._problems.append((name, problem.id, len(grams)))

    def find(self, text: str, min_share: float = 0.0) -> Overlap | None:
        """The greatest overlap of `text` with one problem, if there is any and it is at least `min_share`."""
        shared = [gram for gram in grams_of(text) if gram in self._holders]
        if not shared:
            return None
        counts = Counter(holder for gram in shared for holder in self._holders[gram])
        # Of equal overlaps the first problem is taken, so the result is deterministic.
        best = min(counts, key=lambda holder: (-counts[holder] / self._problems[holder][2], holder))
        name, problem_id, num_grams = self._problems[best]
        share = counts[best] / num_grams
        return Overlap(name, problem_id, share) if share >= min_share else None
