"""Where the words of a cloud stand. Pure and deterministic: from the middle outwards along a spiral, the most frequent
first. Invariant: no two words overlap, and all lie within the frame; a word that finds no place is left out.
"""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rstar2.analysis.words import WordCount

MIN_SIZE, MAX_SIZE = 11.0, 46.0
LINE_HEIGHT = 1.15
MAX_FILLED = 0.45
"""Of the frame's area: a spiral leaves gaps."""
MAX_WORD_CHARS = 24
MAX_WORDS = 80
_TURNS, _POINTS_A_TURN = 40, 36


@dataclass(frozen=True, slots=True)
class PlacedWord:
    word: WordCount
    text: str
    """As drawn: a long word is cut."""
    x: float
    y: float
    """Of the box's upper left corner."""
    width: float
    height: float
    size: float


def place_words(words: Sequence[WordCount], width: float, height: float) -> list[PlacedWord]:
    """In a frame of this size. The area of a word goes with its count."""
    placed: list[PlacedWord] = []
    words = words[:MAX_WORDS]
    texts = [_shortened(word.text) for word in words]
    num_ems = [sum(map(_em, text)) for text in texts]
    for word, text, ems, wanted in zip(words, texts, num_ems, _sizes(words, num_ems, width * height), strict=True):
        size = min(wanted, width / ems, height / LINE_HEIGHT)
        box_width, box_height = size * ems, size * LINE_HEIGHT
        for middle_x, middle_y in _spiral(width, height):
            x, y = middle_x - box_width / 2, middle_y - box_height / 2
            candidate = PlacedWord(word, text, x, y, box_width, box_height, size)
            inside = min(x, y, width - x - box_width, height - y - box_height) > -0.01
            if inside and not any(_overlap(candidate, other) for other in placed):
                placed.append(candidate)
                break
    return placed


def _sizes(words: Sequence[WordCount], num_ems: Sequence[float], area: float) -> list[float]:
    """Smaller all together where the words would not find room."""
    most = max((word.count for word in words), default=1)
    sizes = [MAX_SIZE * math.sqrt(word.count / most) for word in words]
    needed = sum(LINE_HEIGHT * ems * size**2 for ems, size in zip(num_ems, sizes, strict=True))
    scale = math.sqrt(min(1.0, MAX_FILLED * area / needed)) if needed else 1.0
    return [max(MIN_SIZE, scale * size) for size in sizes]


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_WORD_CHARS else text[: MAX_WORD_CHARS - 1] + "…"


def _em(character: str) -> float:
    """Width of a character in units of the font size, as the file then asks the renderer to make it."""
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    return 0.34 if character in "fijlrtI'-" else 0.88 if character in "mw" else 0.58


def _spiral(width: float, height: float) -> Iterator[tuple[float, float]]:
    for number in range(_TURNS * _POINTS_A_TURN):
        radius, angle = number / (_TURNS * _POINTS_A_TURN), 2 * math.pi * number / _POINTS_A_TURN
        yield width / 2 * (1 + radius * math.cos(angle)), height / 2 * (1 + radius * math.sin(angle))


def _overlap(first: PlacedWord, second: PlacedWord) -> bool:
    gap = 3.0
    return (
        first.x < second.x + second.width + gap
        and second.x < first.x + first.width + gap
        and first.y < second.y + second.height
        and second.y < first.y + first.height
    )
