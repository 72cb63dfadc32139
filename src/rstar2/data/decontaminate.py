"""Whether a problem occurs in a benchmark: they share a run of eight words.

The report's rule. Words are runs of letters and digits in lower case, so notation, line breaks and punctuation hide
nothing; LaTeX commands count as words on both sides. Texts of fewer than eight words match if they are equal as words.
A stock phrase ("the greatest integer less than or equal to") is such a run too; `min_share` asks for more than one.
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
    """The benchmark's problem that has most in common, and the share of its runs of words that the problem contains."""

    benchmark: str
    problem_id: str
    share: float


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def grams_of(text: str) -> set[Gram]:
    """Every run of eight words; all of the text if it has fewer."""
    words = words_of(text)
    if len(words) < NUM_GRAM_WORDS:
        return {tuple(words)} if words else set()
    return set(zip(*(words[start:] for start in range(NUM_GRAM_WORDS)), strict=False))


class BenchmarkGrams:
    """The runs of words of all problems of some benchmarks."""

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
        """The greatest overlap of `text` with one problem, if it is more than nothing and at least `min_share`."""
        shared = [gram for gram in grams_of(text) if gram in self._holders]
        if not shared:
            return None
        counts = Counter(holder for gram in shared for holder in self._holders[gram])
        # The first of equals, so that the order of a set never decides.
        best = min(counts, key=lambda holder: (-counts[holder] / self._problems[holder][2], holder))
        name, problem_id, num_grams = self._problems[best]
        share = counts[best] / num_grams
        return Overlap(name, problem_id, share) if share >= min_share else None
