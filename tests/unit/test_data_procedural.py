"""Problems and conversations that are generated: named streams, integer golds, and no key to the answers."""

import math
import re
from collections import Counter
from collections.abc import Callable

import pytest

from rstar2.data.conversation import Conversation
from rstar2.data.procedural import PROBLEM_TASKS, conversations, generate
from rstar2.data.procedural.families import FAMILIES
from rstar2.data.procedural.tool_format import _run
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

ANSWERS: dict[str, Callable[..., int]] = {
    "big_product": lambda a, b: a * b,
    "modular_power": lambda a, b, c: a**b % c,
    "gcd": math.gcd,
    "lcm": lambda a, b: a * b // math.gcd(a, b),
    "range_sum": lambda a, b: sum(range(a, b + 1)),
    "base_conversion": lambda digits, base: sum(
        int(digit) * base**place for place, digit in enumerate(reversed(str(digits)))
    ),
}


def test_a_stream_is_named_and_two_streams_share_nothing() -> None:
    problems = generate(PROBLEM_TASKS, 60, "0/train")
    assert problems == generate(PROBLEM_TASKS, 60, "0/train")
    assert problems[:10] == generate(PROBLEM_TASKS, 10, "0/train"), "more problems change none of the first"
    other = generate(PROBLEM_TASKS, 60, "0/held_out")
    assert not {problem.problem for problem in problems} & {problem.problem for problem in other}
    assert len({problem.id for problem in problems}) == len({problem.problem for problem in problems}) == 60


@pytest.mark.parametrize("task", FAMILIES)
def test_golds_are_right_and_cannot_be_read_off_the_question(task: str) -> None:
    for problem in generate([task], 40, "s"):
        numbers = [int(number) for number in re.findall(r"\d+", problem.problem)]
        assert int(problem.answer) == ANSWERS[task](*numbers), problem.problem
        assert problem.source == f"procedural/{task}"


def test_tasks_come_in_turn() -> None:
    problems = generate(["gcd", "lcm"], 10, "s")
    assert Counter(problem.source for problem in problems) == {"procedural/gcd": 5, "procedural/lcm": 5}


@pytest.mark.parametrize(("task", "num_programs"), [("tool_format", 13), ("wide_tool_format", 18)])
def test_format_conversations_show_calls_and_answers_and_seldom_a_right_one(task: str, num_programs: int) -> None:
    found = conversations(task, 400, "s")
    assert found == conversations(task, 400, "s")
    assert len({_program_in(talk) for talk in found}) == num_programs
    num_right = num_raised = 0
    for conversation in found:
        question, *turns, last = conversation.messages
        assert [question["role"], last["role"]] == ["user", "assistant"]
        assert [message["role"] for message in turns] == ["assistant", "tool"] * (len(turns) // 2)
        assert all(len(message["tool_calls"]) == 1 for message in turns[::2])
        num_raised += any("Traceback" in message["content"] for message in turns[1::2])
        (answer,) = re.findall(r"<answer>\\boxed\{(.*)\}</answer>$", last["content"])
        numbers = [int(number) for number in re.findall(r"\d+", question["content"])]
        num_right += answer in {str(solve(*numbers)) for solve in _may_ask(question["content"])}
    assert num_raised > 20, "errors, and what comes after them, are shown"
    assert num_right < 0.25 * len(found), "which program answers which question is not"


def _program_in(conversation: Conversation) -> str:
    """Of its first call, without what it takes from the question."""
    code = conversation.messages[1]["tool_calls"][0]["function"]["arguments"]["code"]
    return re.sub(r"\d+", "#", re.sub(r'print\(".*', "print(words)", code))


def _may_ask(question: str) -> list[Callable[..., int]]:
    """The answers to the question's own family, known by a word that is in no other."""
    words = {
        "big_product": ("times", "Multiply", "product"),
        "modular_power": ("power",),
        "gcd": ("greatest", "largest"),
        "lcm": ("least", "smallest"),
        "range_sum": ("Add up", "sum of"),
        "base_conversion": ("base",),
    }
    found = [ANSWERS[task] for task, marks in words.items() if any(mark in question for mark in marks)]
    assert len(found) == 1, question
    return found


def test_unknown_tasks_are_named() -> None:
    with pytest.raises(UserError, match=r"'sums'.*big_product"):
        generate(["sums"], 1, "s")
    with pytest.raises(UserError, match=r"'gcd'.*tool_format"):
        conversations("gcd", 1, "s")


def test_stories_are_answered_by_their_programs_and_are_of_no_family() -> None:
    found = conversations("stories", 300, "s")
    assert found == conversations("stories", 300, "s") != conversations("stories", 300, "t")
    assert len({talk.messages[0]["content"] for talk in found}) > 250
    for question, call, output, answer in (talk.messages for talk in found):
        code = call["tool_calls"][0]["function"]["arguments"]["code"]
        assert _run(code) == (output["content"], False)
        assert int(output["content"]) > 0 and f"\\boxed{{{output['content']}}}" in answer["content"]
        assert "{" not in question["content"]
