"""A small sum as a story, with blanks for its numbers and people, and the lines of a program that computes it.

Stories are in TOML files beside this one:

    [[story]]
    text = "{who} buys {a:w} {what} at {b} dollars each and pays with {c} dollars. How much change does {they} get?"
    numbers = { a = "2..9", b = "2..9", c = "90..150" }
    steps = ["cost = a * b", "change = c - cost"]

A number is drawn from a range; `2..9 * 10` is a multiple of ten, `2..9 * a` one of an earlier number, `2..9 + a` is `a`
and 2 to 9 more. `{a:w}` is written as a word up to twenty. `{who}` and `{other}` are people, `{they}`, `{them}` and
`{their}` (or `{They}`, `{Their}`) are pronouns for the first of them, `{what}` is some kind of thing.
"""

import random
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

WOMEN = (
    "Amina", "Dalia", "Freya", "Hana", "Lena", "Nadia", "Priya", "Rosa", "Tala", "Vera", "Yara", "Maria", "Sofia",
    "Emily", "Grace", "Naomi", "Ruth", "Julia", "Tina", "Karen",
)  # fmt: skip
MEN = (
    "Boris", "Chen", "Emeka", "Goran", "Ivo", "Jun", "Kofi", "Mateo", "Oskar", "Samir", "Umar", "Wei", "Zoltan",
    "Daniel", "Peter", "Marcus", "Leo", "Adam", "Victor", "Henry",
)  # fmt: skip
THINGS = (
    "apples", "books", "candles", "marbles", "stamps", "pencils", "shells", "buttons", "cookies", "tulips", "bricks",
    "postcards", "lemons", "tickets", "beads", "eggs", "ribbons", "coins", "stickers", "plates", "pens", "cupcakes",
    "balloons", "toys", "bottles", "flowers",
)  # fmt: skip
WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_IN_WORDS = {word: str(number) for number, word in enumerate(WORDS)} | {
    "half": "2", "halves": "2", "twice": "2", "double": "2", "doubled": "2", "both": "2", "pair": "2", "pairs": "2",
    "third": "3", "thirds": "3", "triple": "3", "tripled": "3", "quarter": "4", "quarters": "4", "fifth": "5",
    "fifths": "5", "sixth": "6", "week": "7", "weekly": "7", "eighth": "8", "tenth": "10", "dozen": "12", "year": "12",
}  # fmt: skip
_RANGE = re.compile(r"(?P<least>\d+)\.\.(?P<most>\d+)(?: (?P<sign>[*+]) (?P<base>\w+))?")
_STEP = re.compile(r"(?P<name>[a-z][a-z_]+) = (?P<sum>.+)")
_NUMBER_NAME = re.compile(r"\b[a-h]\b")
_NUMBER = re.compile(r"\b(?:[a-h]|\d+)\b")
_WRITTEN_NUMBER = re.compile(r"(?<=\{)[a-h](?=[:}])|\b\d+\b")
_SENTENCE_END = re.compile(r"(?<=[.?!])(?<!Mr\.)(?<!Mrs\.)(?<!Ms\.)(?<!Dr\.)(?<!St\.)(?<!\.m\.) +")


class _Number(int):
    def __format__(self, spec: str) -> str:
        return WORDS[self] if spec == "w" and self < len(WORDS) else str(int(self))


@dataclass(frozen=True, slots=True)
class FilledStory:
    question: str
    program: str
    asked: str
    """The name of the program's variable that holds the answer."""


@dataclass(frozen=True, slots=True)
class Story:
    text: str
    numbers: dict[str, str]
    steps: tuple[str, ...]
    """Assignments, each of a sum to a name; the last is the answer."""

    def fill(self, rng: random.Random) -> FilledStory:
        numbers = self._draw(rng)
        blanks = {**_people(rng), **{name: _Number(value) for name, value in numbers.items()}}
        lines = [_NUMBER_NAME.sub(lambda found: str(numbers[found[0]]), step) for step in self.steps]
        quotes = [[f"# {sentence.format(**blanks)}" for sentence in sentences] for sentences in self._read()]
        program = [text for quoted, line in zip(quotes, lines, strict=True) for text in (*quoted, line)]
        return FilledStory(self.text.format(**blanks), "\n".join(program), _name_of(self.steps[-1]))

    def _read(self) -> list[list[str]]:
        """For each step, the sentences to read for it, in their order and each once: up to the last one that tells one
        of its numbers; for the last step all remaining ones."""
        sentences = _SENTENCE_END.split(self.text)
        told_at: dict[str, int] = {}
        for index, sentence in enumerate(sentences):
            for number in _numbers_in(sentence):
                told_at.setdefault(number, index)
        num_read, read = 0, []
        for step in self.steps:
            ends = [told_at[number] + 1 for number in _NUMBER.findall(step) if number in told_at]
            end = len(sentences) if step is self.steps[-1] else max([num_read, *ends])
            read.append(sentences[num_read:end])
            num_read = end
        return read

    def _draw(self, rng: random.Random) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for name, given in self.numbers.items():
            found = _RANGE.fullmatch(given)
            assert found, f"{name} = {given!r} is no range"
            number = rng.randint(int(found["least"]), int(found["most"]))
            if found["sign"]:
                base = numbers[found["base"]] if found["base"] in numbers else int(found["base"])
                number = number * base if found["sign"] == "*" else number + base
            numbers[name] = number
        return numbers


@cache
def all_stories() -> tuple[Story, ...]:
    stories: list[Story] = []
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            rows = tomllib.loads(file.read_text(encoding="utf-8"))["story"]
            stories += [Story(row["text"], row["numbers"], tuple(row["steps"])) for row in rows]
    return tuple(stories)


def _numbers_in(sentence: str) -> set[str]:
    """The numbers of a sentence: names of drawn ones, and others as a program writes them, whether the text has digits
    or words."""
    words = re.findall(r"[a-z]+", sentence.lower())
    return {*_WRITTEN_NUMBER.findall(sentence), *(_IN_WORDS[word] for word in words if word in _IN_WORDS)}


def _people(rng: random.Random) -> dict[str, str]:
    is_woman = rng.random() < 0.5
    who = rng.choice(WOMEN if is_woman else MEN)
    other = rng.choice([name for name in WOMEN + MEN if name != who])
    they, them, their = ("she", "her", "her") if is_woman else ("he", "him", "his")
    people = {"who": who, "other": other, "they": they, "them": them, "their": their, "what": rng.choice(THINGS)}
    return people | {"They": they.capitalize(), "Their": their.capitalize()}


def _name_of(step: str) -> str:
    found = _STEP.fullmatch(step)
    assert found, f"{step!r} gives no sum a name"
    return found["name"]
