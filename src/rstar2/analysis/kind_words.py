"""The words that hold the forking and the reflection tokens of a sample."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rstar2.analysis.examine import TraceTokens, TurnTokens
from rstar2.analysis.kinds import TokenKind

MAX_LISTED_WORDS = 200


@dataclass(frozen=True, slots=True)
class WordCount:
    text: str
    count: int
    """How often the word occurs with a token of the list's kind."""
    num_occurrences: int | None
    """How often the word occurs in all prose of the sample; None for phrases."""
    mean_value: float
    """The mean, over the counted occurrences, of the highest value among the occurrence's tokens of that kind."""


class WordCounter:
    """Adds up occurrences of words, and of the phrases that they start."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, text: str, value: float) -> None:
        self._values.setdefault(text, []).append(value)

    def most_common(self, limit: int, occurrences: Iterable[tuple[str, int]] = ()) -> tuple[WordCount, ...]:
        """The first words by count, then by mean value, then by the alphabet; single letters are variables' names and
        left out."""
        known = dict(occurrences)
        rows = [
            WordCount(text, len(values), known.get(text), sum(values) / len(values))
            for text, values in self._values.items()
            if len(text) > 1
        ]
        return tuple(sorted(rows, key=lambda row: (-row.count, -row.mean_value, row.text))[:limit])


@dataclass(frozen=True, slots=True)
class KindWords:
    """The number of tokens of one kind, and their words."""

    num_tokens: int
    words: tuple[WordCount, ...]
    phrases: tuple[WordCount, ...]
    """The phrases that these words start: each word with the one after it."""


class KindCollector:
    def __init__(self) -> None:
        self._num_tokens = Counter[TokenKind]()
        self._words = {kind: WordCounter() for kind in TokenKind}
        self._phrases = {kind: WordCounter() for kind in TokenKind}
        self._occurrences = Counter[str]()

    def add(self, tokens: TraceTokens) -> None:
        for turn in tokens.turns:
            self._num_tokens.update(kind for kind in turn.kinds if kind is not None)
            prose = {
                index for place, found in enumerate(turn.classes) if found.is_prose for index in turn.touched[place]
            }
            self._occurrences.update(turn.words[index].text for index in prose)
            for kind in TokenKind:
                self._add_words(turn, kind)

    def _add_words(self, turn: TurnTokens, kind: TokenKind) -> None:
        highest: dict[int, float] = {}
        for place, found in enumerate(turn.kinds):
            for index in turn.touched[place] if found is kind else ():
                highest[index] = max(highest.get(index, 0.0), float(turn.values[place]))
        for index, value in highest.items():
            word = turn.words[index]
            self._words[kind].add(word.text, value)
            if index + 1 < len(turn.words) and not turn.words[index + 1].opens_sentence:
                self._phrases[kind].add(f"{word.text} {turn.words[index + 1].text}", value)

    def table(self) -> dict[TokenKind, KindWords]:
        return {
            kind: KindWords(
                self._num_tokens[kind],
                self._words[kind].most_common(MAX_LISTED_WORDS, self._occurrences.items()),
                self._phrases[kind].most_common(MAX_LISTED_WORDS),
            )
            for kind in TokenKind
        }
