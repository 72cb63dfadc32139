"""Finds the words in a turn's text, and which of them open a sentence or a new line of thought.

A word is a run of letters of any script, with apostrophes and hyphens inside; LaTeX commands are no words, and tags
count as line breaks. Words are compared without case.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CUE_LINES = """
    actually, alternatively, but, but before, hmm, hold on, however, instead, maybe, on second thought,
    on the other hand, otherwise, perhaps, suppose, unless, wait, what if,
    double check, double-check, double-checking, let me check, let me recheck, let me verify, let's check, let's verify,
    make sure, re-check, re-evaluate, re-examine, recalculate, recheck, recompute, reconsider, reevaluate, reexamine,
    rethink, revisit, to be sure, verify,
    another approach, another way, different approach, re-run, rerun, retry, start over, try again, try another
"""
FORKING_CUES = frozenset(tuple(phrase.split()) for phrase in _CUE_LINES.split(","))
"""Phrases that open self-reflection or another branch. They are the report's own ("but before", "double-check",
"rerun") and their plain variants. A token in one of them is forking only if its entropy is high as well."""
MAX_CUE_WORDS = max(map(len, FORKING_CUES))

_WORD = re.compile(r"\\?[^\W\d_]+(?:['’‑-][^\W\d_]+)*")
_TAG = re.compile(r"<[/|]?\w+[|]?>")
_SENTENCE_END = re.compile(r"[.!?:;…](?=\s|$)|[\n。！？；：]")


@dataclass(frozen=True, slots=True)
class Word:
    """A word: characters `start` to `end` (not included) of a turn."""

    start: int
    end: int
    text: str
    opens_sentence: bool
    is_cue: bool
    """Whether the word is part of one of `FORKING_CUES`."""


def find_words(text: str) -> tuple[Word, ...]:
    text = _TAG.sub(lambda tag: "\n" * len(tag[0]), text)
    found = [match for match in _WORD.finditer(text) if not match[0].startswith("\\")]
    texts = [match[0].lower().replace("’", "'").replace("‑", "-") for match in found]
    opens = [
        index == 0 or _SENTENCE_END.search(text[found[index - 1].end() : match.start()]) is not None
        for index, match in enumerate(found)
    ]
    cues = _cue_words(texts, opens)
    return tuple(
        Word(match.start(), match.end(), texts[index], opens[index], index in cues) for index, match in enumerate(found)
    )


def words_of_tokens(pieces: Sequence[str], words: Sequence[Word]) -> list[list[int]]:
    """For each token, the indices of the words of which it has a character."""
    result: list[list[int]] = []
    start, first = 0, 0
    for piece in pieces:
        end = start + len(piece)
        while first < len(words) and words[first].end <= start:
            first += 1
        touched, index = list[int](), first
        while index < len(words) and words[index].start < end:
            touched.append(index)
            index += 1
        result.append(touched if piece else [])
        start = end
    return result


def _cue_words(texts: Sequence[str], opens: Sequence[bool]) -> set[int]:
    cues: set[int] = set()
    for first in range(len(texts)):
        for end in range(first + 1, min(first + MAX_CUE_WORDS, len(texts)) + 1):
            if end > first + 1 and opens[end - 1]:
                break
            if tuple(texts[first:end]) in FORKING_CUES:
                cues.update(range(first, end))
    return cues
