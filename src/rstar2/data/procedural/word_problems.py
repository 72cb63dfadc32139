"""Everyday sums in a few sentences: who has what, what happens to it, how much there is in the end.

A story is put together step by step, each step a sentence and what it does to a number, so that no two are built alike
and every gold is computed as the story is built. Steps are drawn from those that leave an integer.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

NAMES = (
    "Alba", "Bruno", "Clara", "Dev", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Lior", "Mina", "Nuno",
    "Olga", "Pablo", "Rania", "Sven", "Tomas", "Ursula", "Viktor", "Wanda", "Ximena", "Yusuf", "Zora",
)  # fmt: skip
THINGS = (
    "oranges", "notebooks", "crayons", "seashells", "baseball cards", "muffins", "roses", "keychains", "peaches",
    "puzzles", "ribbons", "badges", "walnuts", "figurines", "balloons", "magnets", "pears", "stickers", "toy cars",
)  # fmt: skip
GOODS = (("a notebook", "notebooks"), ("a pen", "pens"), ("a shirt", "shirts"), ("a mug", "mugs"), ("a kite", "kites"),
         ("a lamp", "lamps"), ("a cake", "cakes"), ("a ticket", "tickets"), ("a plant", "plants"))  # fmt: skip
PARTS = ((2, "half"), (3, "a third"), (4, "a quarter"), (5, "a fifth"))
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True, slots=True)
class StoryStep:
    """A sentence of a story, and the amount after it."""

    text: str
    value: int


Next = Callable[[random.Random, int], StoryStep | None]
"""Makes the next step from the current amount; None if the result would not be an integer."""


def make_word_problem(rng: random.Random, num_steps: int) -> tuple[str, int]:
    """The question and its answer, which takes about `num_steps` sums."""
    return rng.choice(STORIES)(rng, num_steps)


def _walk(rng: random.Random, value: int, steps: Sequence[Next], num_steps: int) -> tuple[list[str], int]:
    texts: list[str] = []
    while len(texts) < num_steps:
        step = rng.choice(steps)(rng, value)
        if step is not None and 0 < step.value < 100_000:
            texts.append(step.text)
            value = step.value
    return texts, value


def _part(rng: random.Random, value: int) -> tuple[int, str] | None:
    """A part that divides `value` without a remainder."""
    fitting = [(divisor, words) for divisor, words in PARTS if value % divisor == 0 and value > divisor]
    return rng.choice(fitting) if fitting else None


# What a person has, and what happens to it.


def collection(rng: random.Random, num_steps: int) -> tuple[str, int]:
    who, other = rng.sample(NAMES, 2)
    what = rng.choice(THINGS)

    def gets(rng: random.Random, value: int) -> StoryStep:
        more = rng.randint(2, 40)
        words = (f"{other} gives {who} {more} more.", f"{who} finds another {more}.", f"Then {who} buys {more} more.")
        return StoryStep(rng.choice(words), value + more)

    def gets_packs(rng: random.Random, value: int) -> StoryStep:
        packs, size = rng.randint(2, 9), rng.randint(2, 12)
        words = (f"{who} buys {packs} packs of {size} {what}.", f"{packs} friends bring {size} {what} each.")
        return StoryStep(rng.choice(words), value + packs * size)

    def gets_daily(rng: random.Random, value: int) -> StoryStep:
        days, daily = rng.randint(3, 14), rng.randint(2, 9)
        return StoryStep(f"On each of the next {days} days {who} gets {daily} more.", value + days * daily)

    def loses(rng: random.Random, value: int) -> StoryStep | None:
        if value < 4:
            return None
        fewer = rng.randint(1, value - 1)
        words = (f"{who} gives {fewer} of them away.", f"{fewer} of them get lost.", f"{who} sells {fewer}.")
        return StoryStep(rng.choice(words), value - fewer)

    def loses_part(rng: random.Random, value: int) -> StoryStep | None:
        part = _part(rng, value)
        return part and StoryStep(f"{who} gives {part[1]} of what there is to {other}.", value - value // part[0])

    def doubles(rng: random.Random, value: int) -> StoryStep:
        factor = rng.choice((2, 3))
        return StoryStep(f"A month later {who} has {TIMES[factor]} as many as that.", value * factor)

    start = rng.randint(5, 80)
    steps = (gets, gets_packs, gets_daily, loses, loses_part, doubles)
    texts, value = _walk(rng, start, steps, num_steps)
    opening = rng.choice((f"{who} has {start} {what}.", f"{who} starts with {start} {what}."))
    question = rng.choice((f"How many {what} does {who} have now?", f"How many {what} are there in the end?"))
    return " ".join([opening, *texts, question]), value


# Several people, each with a number that depends on another's.


def comparison(rng: random.Random, num_steps: int) -> tuple[str, int]:
    names = rng.sample(NAMES, min(num_steps + 1, 5))
    what = rng.choice(THINGS)
    values = [rng.randint(4, 60)]
    texts = [f"{names[0]} has {values[0]} {what}."]
    for name in names[1:]:
        place = rng.randrange(len(values))
        text, value = _related(rng, name, names[place], values[place], what)
        texts.append(text)
        values.append(value)
    last, first = names[-1], names[0]
    asked = [(f"How many {what} do they have altogether?", sum(values)), (f"How many has {last}?", values[-1])]
    if values[-1] > values[0]:
        asked.append((f"How many more {what} does {last} have than {first}?", values[-1] - values[0]))
    question, answer = rng.choice(asked)
    return " ".join([*texts, question]), answer


def _related(rng: random.Random, name: str, other: str, value: int, what: str) -> tuple[str, int]:
    more, factor, part = rng.randint(2, 30), rng.choice((2, 3, 4)), _part(rng, value)
    related = [
        (f"{name} has {more} more {what} than {other}.", value + more),
        (f"{name} has {TIMES[factor]} as many {what} as {other}.", factor * value),
        (f"{name} has {more} more than {TIMES[factor]} as many {what} as {other}.", factor * value + more),
    ]
    if value > 4:
        fewer = rng.randint(1, value - 2)
        related.append((f"{name} has {fewer} fewer {what} than {other}.", value - fewer))
    if part is not None:
        related.append((f"{name} has {part[1]} as many {what} as {other}.", value // part[0]))
    return rng.choice(related)


# Money: what is bought, what is earned.


def shopping(rng: random.Random, num_steps: int) -> tuple[str, int]:
    who = rng.choice(NAMES)
    lines = rng.sample(GOODS, max(1, min(num_steps - 1, 4)))
    counts, prices = [rng.randint(2, 9) for _ in lines], [rng.randint(2, 25) for _ in lines]
    bought = [f"{count} {many}" for count, (_, many) in zip(counts, lines, strict=True)]
    priced = [f"{one} costs ${price}" for price, (one, _) in zip(prices, lines, strict=True)]
    total = sum(count * price for count, price in zip(counts, prices, strict=True))
    texts = [f"{who} buys {_listed(bought)}.", f"{_listed(priced).capitalize()}."]
    ending = rng.randrange(4)
    if ending == 0 and total % 10 == 0:
        percent = 10 * rng.randint(1, 5)
        total -= total * percent // 100
        texts.append(f"There is {percent}% off everything.")
    if ending == 1 and total > 12:
        coupon = rng.randint(2, 10)
        total -= coupon
        texts.append(f"A coupon takes ${coupon} off the bill.")
    if ending == 2:
        paid = total + rng.randint(1, 60)
        return " ".join([*texts, f"{who} pays with ${paid}. How many dollars of change are due?"]), paid - total
    return " ".join([*texts, f"How many dollars does {who} pay?"]), total


def earning(rng: random.Random, num_steps: int) -> tuple[str, int]:
    who = rng.choice(NAMES)
    wage, hours, days = rng.randint(8, 30), rng.randint(2, 9), rng.randint(2, 6)

    def bonus(rng: random.Random, value: int) -> StoryStep:
        more = 5 * rng.randint(2, 30)
        return StoryStep(f"There is a bonus of ${more} as well.", value + more)

    def spends(rng: random.Random, value: int) -> StoryStep:
        fewer = rng.randint(3, 60)
        words = (f"{who} spends ${fewer} on food.", f"A bus ticket costs {who} ${fewer}.")
        return StoryStep(rng.choice(words), value - fewer)

    def saves_part(rng: random.Random, value: int) -> StoryStep | None:
        part = _part(rng, value)
        return part and StoryStep(f"Then {part[1]} of the money goes into savings.", value - value // part[0])

    def works_weeks(rng: random.Random, value: int) -> StoryStep:
        weeks = rng.randint(2, 5)
        return StoryStep(
            f"{who} puts the same sum aside in each of {weeks} weeks, and has all of it now.", value * weeks
        )

    texts, value = _walk(rng, wage * hours * days, (bonus, spends, saves_part, works_weeks), max(0, num_steps - 2))
    opening = rng.choice(
        (
            f"{who} earns ${wage} an hour and works {hours} hours a day for {days} days.",
            f"For {days} days {who} works {hours} hours a day. An hour is paid with ${wage}.",
        )
    )
    return " ".join([opening, *texts, f"How many dollars does {who} have then?"]), value


# Things that are made, and distances that are travelled.


def making(rng: random.Random, num_steps: int) -> tuple[str, int]:
    what, place = rng.choice(THINGS), rng.choice(("A workshop", "A bakery", "A factory", "A family"))
    hourly, hours = rng.randint(4, 60), rng.randint(2, 10)

    def breaks(rng: random.Random, value: int) -> StoryStep | None:
        part = _part(rng, value)
        return part and StoryStep(f"Of these, {part[1]} cannot be used.", value - value // part[0])

    def every_day(rng: random.Random, value: int) -> StoryStep:
        days = rng.randint(2, 7)
        return StoryStep(f"This happens on each of {days} days.", value * days)

    def keeps_back(rng: random.Random, value: int) -> StoryStep:
        fewer = rng.randint(2, 30)
        return StoryStep(f"Then {fewer} are kept back.", value - fewer)

    texts, value = _walk(rng, hourly * hours, (breaks, every_day, keeps_back), max(0, num_steps - 2))
    opening = f"{place} makes {hourly} {what} an hour, {hours} hours a day."
    price = rng.randint(2, 12)
    asked = [
        (f"How many {what} is that in the end?", value),
        (f"They are sold at ${price} each. How many dollars is that?", value * price),
    ]
    sizes = [size for size in range(2, 13) if value % size == 0]
    if sizes:
        size = rng.choice(sizes)
        asked.append((f"They are put into boxes of {size}. How many boxes are filled?", value // size))
    question, answer = rng.choice(asked)
    return " ".join([opening, *texts, question]), answer


def travel(rng: random.Random, num_steps: int) -> tuple[str, int]:
    who = rng.choice(NAMES)
    legs = [(rng.randint(2, 6), 5 * rng.randint(2, 20)) for _ in range(max(1, num_steps - 1))]
    parts = [f"{hours} hours at {speed} miles an hour" for hours, speed in legs]
    total = sum(hours * speed for hours, speed in legs)
    opening = f"{who} travels {_listed(parts, 'and then')}."
    if rng.random() < 0.5:
        whole = total + rng.randint(5, 200)
        return f"{opening} The whole way is {whole} miles. How many miles are left?", whole - total
    return f"{opening} How many miles is that?", total


def ages(rng: random.Random, num_steps: int) -> tuple[str, int]:
    names = rng.sample(NAMES, min(num_steps + 1, 4))
    values = [rng.randint(4, 30)]
    texts = [f"{names[0]} is {values[0]} years old."]
    for previous, name in pairwise(names):
        years, factor = rng.randint(2, 15), rng.choice((2, 3))
        text, value = rng.choice(
            (
                (f"{name} is {years} years older than {previous}.", values[-1] + years),
                (f"{name} is {TIMES[factor]} as old as {previous}.", values[-1] * factor),
            )
        )
        texts.append(text)
        values.append(value)
    years = rng.randint(2, 12)
    if rng.random() < 0.5:
        return " ".join([*texts, f"How old will {names[-1]} be in {years} years?"]), values[-1] + years
    return " ".join([*texts, "How old are they together?"]), sum(values)


STORIES = (collection, collection, comparison, comparison, shopping, earning, making, travel, ages)
"""The kinds of stories; those with the most variants are drawn twice as often."""


def _listed(parts: Sequence[str], last: str = "and") -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} {last} {parts[-1]}"
