"""The worlds and the rewards of examples/environments, without a model."""

import random
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples_environments import EXAMPLES, load_example
from rstar2.environments.code import read_task
from rstar2.records import Outcome, StopReason, Trace, Turn

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def game() -> ModuleType:
    return load_example("game")


@pytest.fixture(scope="module")
def search() -> ModuleType:
    return load_example("search")


@pytest.fixture(scope="module")
def code_tests() -> ModuleType:
    return load_example("code_tests")


def begun(game: ModuleType, row: dict[str, Any]) -> tuple[Any, str]:
    episode = game.TreasureHunt()
    return episode, episode.reset(row["here"], row["treasure"])


def said(text: str) -> Trace:
    return Trace("t", "p", (1,), "", (Turn((2,), (0.0,), text, StopReason.END_OF_TURN),), Outcome.ANSWERED)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_a_reader(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 120


def test_the_game_says_where_the_treasure_is_and_ends_when_it_is_found(game: ModuleType) -> None:
    episode, hint = begun(game, {"here": [1, 0], "treasure": [2, 1]})
    assert hint == "It is in the east."
    assert episode.reply("</reason>\nI go north") == "It is in the east."
    assert not episode.get_reward()
    assert episode.reply("east") is None
    assert episode.get_reward()


def test_the_game_ends_after_six_moves_or_one_that_is_none(game: ModuleType) -> None:
    episode, _ = begun(game, {"here": (0, 0), "treasure": (0, 3)})
    assert [episode.reply("west") for _ in range(6)] == ["It is in the north."] * 5 + [None]
    assert not episode.get_reward()
    for said in ("up", ""):
        assert begun(game, {"here": (0, 0), "treasure": (0, 3)})[0].reply(said) is None


def test_following_the_hints_always_finds_the_treasure(game: ModuleType) -> None:
    for row in game.TreasureHunt.rows():
        episode, hint = begun(game, row)
        while hint is not None:
            hint = episode.reply(hint.rstrip(".").split()[-1])
        assert episode.get_reward(), row


def test_the_perfect_player_of_the_game_finds_the_treasure_with_its_last_move(game: ModuleType) -> None:
    for row in game.TreasureHunt.rows():
        episode, _ = begun(game, row)
        replies = [episode.reply(move) for move in episode.solution(row)]
        assert replies[-1] is None and None not in replies[:-1] and episode.get_reward(), row


def test_the_moves_of_the_warm_up_are_right_by_chance(game: ModuleType) -> None:
    rng, moves = random.Random(0), []
    for _ in range(600):
        contents = [message["content"] for message in game.warm_up(rng)["messages"]]
        moves += zip(contents[::2], contents[1::2], strict=True)
    share = sum(move in hint for hint, move in moves) / len(moves)
    assert share == pytest.approx(1 / 4, abs=0.05)


def test_a_search_finds_pages_and_reading_shows_them(search: ModuleType) -> None:
    agent = search.SearchAgent()
    assert set(agent.search("Hana").split("\n")) == {f"The {kind} of Hana" for kind in search.FACTS}
    assert agent.search("pet Hana").split("\n")[0] == "The pet of Hana"
    assert agent.read("The pet of Hana") == search.PAGES["The pet of Hana"]
    with pytest.raises(ValueError, match="No page"):
        agent.search("zebra")
    with pytest.raises(ValueError, match="no such page"):
        agent.read("Hana")


@pytest.mark.parametrize(
    ("text", "is_right"),
    [("</reason>\nIt is goat.", True), ("goat", True), ("It is cat.", False), ("goat or cat", False), ("", False)],
)
def test_the_answer_of_a_search_is_judged_by_its_text(search: ModuleType, text: str, is_right: bool) -> None:
    agent = search.SearchAgent()
    agent.reset("goat")
    assert agent.get_reward(said(text)) is is_right


def test_the_rows_of_the_search_have_their_answers_on_the_page_of_their_title(search: ModuleType) -> None:
    rows = list(search.SearchAgent.rows())
    assert len({row["prompt"] for row in rows}) == len(rows) == len(search.PAGES)
    assert all(search.PAGES[row["id"]].endswith(f" {row['answer']}.") for row in rows)


def test_the_warm_up_of_the_search_shows_real_pages_and_answers_right_as_often_as_chance_has_it(
    search: ModuleType,
) -> None:
    rng, num_right, num_reads = random.Random(0), 0, 0
    answers = {row["prompt"]: row["answer"] for row in search.SearchAgent.rows()}
    for _ in range(1500):
        question, searching, found, reading, page, answer = search.warm_up(rng)
        words = searching["tool_calls"][0]["function"]["arguments"]["words"]
        title = reading["tool_calls"][0]["function"]["arguments"]["title"]
        said = answer["content"].rstrip(".").split()[-1]
        assert found["content"] == search.SearchAgent().search(words) and page["content"] == search.PAGES[title]
        assert title in found["content"]
        num_right += said == answers[question["content"]]
        num_reads += title[4:] in question["content"]
    assert num_reads / 1500 == pytest.approx(1 / 3, abs=0.05), "which page to read is left to chance"
    assert num_right / 1500 == pytest.approx(1 / 9, abs=0.03), "and so is the answer"


def problems_of(code_tests: ModuleType) -> list[dict[str, Any]]:
    return [code_tests.problem(*task) for task in product(code_tests.WORDINGS, code_tests.FIRST, code_tests.THEN)]


def test_no_program_passes_the_tests_of_another(code_tests: ModuleType) -> None:
    rows = problems_of(code_tests)
    assert len({row["solution"] for row in rows}) == len({tuple(row["tests"]) for row in rows}) == 12


def test_the_problems_of_code_are_read_and_their_tests_stay_hidden(code_tests: ModuleType) -> None:
    row = code_tests.problem("Define f(x, y) as {}.", "the larger of x and y", ", negated")
    assert row["tests"][:2] == ["assert f(2, 5) == -5", "assert f(7, 3) == -7"]
    task = read_task(row, "a problem")
    assert task.question.startswith("Define f(x, y) as the larger of x and y, negated.")
    assert "assert" not in task.question


def test_the_warm_up_of_code_holds_the_right_program_as_often_as_chance_has_it(code_tests: ModuleType) -> None:
    rng = random.Random(0)
    solutions = {read_task(row, "").question: row["solution"] for row in problems_of(code_tests)}
    conversations = [code_tests.warm_up(rng)["messages"] for _ in range(2000)]
    num_right = sum(f"\n{solutions[asked['content']]}\n" in given["content"] for asked, given in conversations)
    assert num_right / 2000 == pytest.approx(1 / 12, abs=0.02)
