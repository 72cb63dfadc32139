"""`rstar2 env validate` on data that an environment cannot use. Nothing is played, so no sandbox is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

TASK = """
from rstar2.environments import Task

class Pens(Task):
    def prompt(self, row):
        return "Order."

    def reset(self, colour: str):
        self.wanted = colour

    def get_reward(self):
        return 1.0
"""


def test_every_row_that_the_environment_cannot_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pens.py").write_text(TASK)
    Path("rows.jsonl").write_text('{"colour": "red"}\n{"color": "red"}\n{"colour": ["red"]}\n')
    with pytest.raises(UserError) as refused:
        arguments = ["env", "validate", "file:pens.py:Pens", "--data", "rows.jsonl"]
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    _, missing, wrong = str(refused.value).splitlines()
    assert missing.startswith("  rows.jsonl, line 2: ") and missing.endswith(
        "needs the column 'colour'; the row has color"
    )
    assert wrong.startswith("  rows.jsonl, line 3: ") and "cannot take ['red'] as column colour: " in wrong
