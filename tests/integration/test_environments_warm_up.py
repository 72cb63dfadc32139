"""Conversations that an environment writes for a warm-up: real results, mostly with the solution of another problem."""

import json
from pathlib import Path

import pytest

from rstar2.config import parse_recipe
from rstar2.data import load_curriculum
from rstar2.errors import UserError

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

OWN = """
from rstar2.environments import Task, tool_call


class Ask(Task):
    def prompt(self, row):
        return f"Ask for {row['number']}."

    def reset(self, number):
        self.turns = 0

    def look(self, number: int) -> int:
        '''Doubles a number.'''
        return 2 * number

    def reply(self, said):
        self.turns += 1
        return "And now?" if self.turns == 1 else None

    def get_reward(self):
        return 1.0

    @staticmethod
    def rows():
        return [{"number": number} for number in range(100)]

    def solution(self, row):
        return [tool_call("look", number=row["number"]), f"</reason>Half of {2 * row['number']}.", "</reason>Done."]


class Unsolved(Ask):
    def solution(self, row):
        return None
"""
RECIPE = """
name = "warm"
[model]
name = "smollm2-135m"
[environment]
source = "file:{file}:{name}"
[sft]
data = ["format"]
[data.format]
source = "environment"
num_problems = 40
"""


def recipe_of(folder: Path, name: str) -> str:
    (folder / "own.py").write_text(OWN)
    return RECIPE.format(file=folder / "own.py", name=name)


def test_calls_are_real_and_most_have_nothing_to_do_with_the_question(tmp_path: Path) -> None:
    recipe = parse_recipe(recipe_of(tmp_path, "Ask"))
    conversations = load_curriculum(recipe).conversations
    assert len(conversations) == 40
    num_own = 0
    for conversation in conversations:
        roles = [message["role"] for message in conversation.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        question, call, result, said, reply, _ = (message["content"] for message in conversation.messages)
        asked = int(question.split()[-1].rstrip("."))
        number = json.loads(call.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0])["arguments"]["number"]
        assert (result, said, reply) == (str(2 * number), f"<reason></reason>Half of {2 * number}.", "And now?")
        num_own += asked == number
        assert conversation.tools[0]["function"]["name"] == "look"
    assert 4 <= num_own <= 24
    assert load_curriculum(recipe).conversations == conversations, "the seed says which"


def test_without_solutions_there_is_no_warm_up(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"knows no solution of problem .*give its class a solution\(row\)"):
        load_curriculum(parse_recipe(recipe_of(tmp_path, "Unsolved")))
