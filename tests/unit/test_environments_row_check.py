"""What is checked of the rows before a run, and what is not."""

from pathlib import Path

import pytest

from rstar2.config import DataSet, EnvironmentSection, Recipe, parse_recipe
from rstar2.data.row_checker import RowChecker, require_usable_rows
from rstar2.environments import row_check
from rstar2.records import Problem

pytestmark = pytest.mark.unit

PROBLEMS = [Problem(f"p{number}", "", "", row={"prompt": "Hi.", "number": number}) for number in range(3)]


def recipe_of(source: str) -> Recipe:
    return parse_recipe(
        f'name = "x"\n[model]\nname = "m"\n[environment]\nsource = "{source}"\n'
        '[data.mine]\nsource = "file:rows.jsonl"\n[[stages]]\nname = "only"\ndata = ["mine"]\n'
        "max_response_tokens = 4096\nsteps = 1"
    )


@pytest.fixture
def own(tmp_path: Path) -> Recipe:
    (tmp_path / "own.py").write_text("def reward(row, trace):\n    return 1.0\n")
    return recipe_of(f"file:{tmp_path / 'own.py'}:reward")


def test_no_time_is_left(own: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_check, "PATIENCE_S", -1.0)
    checker = RowChecker(own)
    checker.check("mine", PROBLEMS)
    (note,) = checker.notes
    assert note.startswith("data.mine: 0 of its 3 rows were checked with file:")


def test_a_server_is_not_asked() -> None:
    """Nobody listens there."""
    checker = RowChecker(recipe_of("openenv:http://127.0.0.1:9"))
    checker.check("mine", PROBLEMS)
    assert "0 of its 3 rows were checked with openenv:" in checker.notes[0]


def test_all_rows_are_good(own: Recipe) -> None:
    checker = RowChecker(own)
    checker.check("mine", PROBLEMS)
    checker.check("a benchmark", PROBLEMS)
    assert not checker.notes


def test_mathematics_is_checked_by_the_loader(own: Recipe) -> None:
    problems = [Problem("p", "1 + 1?", "2")]
    spec = DataSet(source="file:rows.jsonl")
    assert require_usable_rows("mine", spec, problems, EnvironmentSection(), own) == 1
