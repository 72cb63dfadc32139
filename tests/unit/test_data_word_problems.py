"""Stories with numbers: read again by another reader, sentence by sentence, they come to their golds."""

import random
import re
from collections.abc import Callable

import pytest

from rstar2.data.procedural import generate
from rstar2.data.procedural.word_problems import ages, collection, comparison, earning, making, shopping, travel

pytestmark = pytest.mark.unit

PARTS = {"half": 2, "a third": 3, "a quarter": 4, "a fifth": 5}
TIMES = {"twice": 2, "three times": 3, "four times": 4}
NUMBER = r"\$?(\d+)"
PART = rf"({'|'.join(PARTS)})"
MANY = rf"({'|'.join(TIMES)})"


def say(pattern: str, change: Callable[..., int]) -> tuple[re.Pattern[str], Callable[..., int]]:
    return re.compile(pattern), change


WALK = [
    say(rf"(?:gives \w+|finds another|buys) {NUMBER}(?: more)?\.$", lambda v, n: v + int(n)),
    say(rf"buys {NUMBER} packs of {NUMBER}|^{NUMBER} friends bring {NUMBER}", lambda v, *n: v + product(n)),
    say(rf"next {NUMBER} days \w+ gets {NUMBER} more", lambda v, *n: v + product(n)),
    say(rf"gives {NUMBER} of them away|^{NUMBER} of them get lost|sells {NUMBER}", lambda v, *n: v - product(n)),
    say(rf"gives {PART} of what|^Then {PART} of the money|^Of these, {PART}", lambda v, *p: v - v // part(p)),
    say(rf"has {MANY} as many as that", lambda v, times: v * TIMES[times]),
    say(rf"bonus of {NUMBER}", lambda v, n: v + int(n)),
    say(rf"spends {NUMBER}|ticket costs \w+ {NUMBER}|^Then {NUMBER} are kept", lambda v, *n: v - product(n)),
    say(rf"in each of {NUMBER} weeks|each of {NUMBER} days\.$", lambda v, *n: v * product(n)),
    say(rf"sold at {NUMBER} each", lambda v, n: v * int(n)),
    say(rf"boxes of {NUMBER}", lambda v, n: v // int(n)),
]


def product(numbers: tuple[str | None, ...]) -> int:
    found = 1
    for number in numbers:
        found *= int(number) if number else 1
    return found


def part(parts: tuple[str | None, ...]) -> int:
    return next(PARTS[words] for words in parts if words)


def read_walk(story: str) -> int:
    opening, *sentences = re.split(r"(?<=[.?]) ", story)
    return follow(product(tuple(re.findall(r"\d+", opening))), sentences)


def follow(value: int, sentences: list[str]) -> int:
    for sentence in sentences:
        if sentence.startswith("How"):
            continue
        # The second sentence of one opening: "For 2 days … An hour is paid with $26."
        if paid := re.match(rf"An hour is paid with {NUMBER}", sentence):
            value *= int(paid[1])
            continue
        fitting = [(found, change) for pattern, change in WALK if (found := pattern.search(sentence))]
        assert len(fitting) == 1, sentence
        found, change = fitting[0]
        value = change(value, *found.groups())
    return value


@pytest.mark.parametrize("tell", [collection, earning, making])
def test_what_happens_to_a_number_in_turn(tell: Callable[[random.Random, int], tuple[str, int]]) -> None:
    rng = random.Random(5)
    for index in range(400):
        story, answer = tell(rng, 1 + index % 6)
        assert read_walk(story) == answer, story


def test_bills_ways_and_ages() -> None:
    rng = random.Random(6)
    for index in range(300):
        story, answer = travel(rng, 1 + index % 5)
        legs = sum(int(hours) * int(speed) for hours, speed in re.findall(r"(\d+) hours at (\d+) miles", story))
        whole = re.search(r"whole way is (\d+)", story)
        assert answer == (int(whole[1]) - legs if whole else legs), story

        story, answer = shopping(rng, 1 + index % 5)
        counts = {
            many: int(count) for count, many in re.findall(r"(\d+) (\w+)(?:,| and|\.)", story.split(".")[0] + ".")
        }
        prices = {f"{one}s": int(price) for one, price in re.findall(r"(\w+) costs \$(\d+)", story)}
        bill = sum(count * prices[many] for many, count in counts.items())
        if percent := re.search(r"(\d+)% off", story):
            bill -= bill * int(percent[1]) // 100
        if coupon := re.search(r"takes \$(\d+) off", story):
            bill -= int(coupon[1])
        paid = re.search(r"pays with \$(\d+)", story)
        assert answer == (int(paid[1]) - bill if paid else bill), story

        story, answer = ages(rng, 1 + index % 4)
        assert answer == read_ages(story), story


def read_ages(story: str) -> int:
    values: list[int] = []
    for sentence in re.split(r"(?<=[.?]) ", story):
        if first := re.search(r"is (\d+) years old\.", sentence):
            values.append(int(first[1]))
        elif older := re.search(r"is (\d+) years older", sentence):
            values.append(values[-1] + int(older[1]))
        elif times := re.search(rf"is {MANY} as old", sentence):
            values.append(values[-1] * TIMES[times[1]])
        elif later := re.search(r"be in (\d+) years", sentence):
            return values[-1] + int(later[1])
    return sum(values)


def test_who_has_how_many() -> None:
    rng = random.Random(7)
    for index in range(400):
        story, answer = comparison(rng, 1 + index % 5)
        *facts, question = re.split(r"(?<=[.?]) ", story)
        has: dict[str, int] = {}
        for fact in facts:
            name, _, rest = fact.partition(" has ")
            other = rest.rstrip(".").rpartition(" ")[2]
            if times := re.match(rf"(?:(\d+) more than )?{MANY} as many", rest):
                has[name] = has[other] * TIMES[times[2]] + int(times[1] or 0)
            elif share := re.match(rf"{PART} as many", rest):
                has[name] = has[other] // PARTS[share[1]]
            elif apart := re.match(r"(\d+) (more|fewer) .* than", rest):
                has[name] = has[other] + int(apart[1]) * (1 if apart[2] == "more" else -1)
            else:
                has[name] = int(rest.split()[0])
        if "altogether" in question:
            assert answer == sum(has.values()), story
        elif more := re.match(r"How many more .* does (\w+) have than (\w+)\?", question):
            assert answer == has[more[1]] - has[more[2]], story
        else:
            assert answer == has[question.rstrip("?").rpartition(" ")[2]], story


def test_they_are_a_task_like_any_other() -> None:
    problems = generate(["word_problems", "long_word_problems"], 200, "s")
    assert len({problem.problem for problem in problems}) == 200
    assert all(int(problem.answer) > 0 for problem in problems)
    short, long = (sum(map(len, (problem.problem for problem in problems[start::2]))) for start in (0, 1))
    assert long > 1.3 * short
