"""A driver that is killed is started again; one that ends by itself is not."""

import signal
import sys
from pathlib import Path

import pytest

from rstar2.cluster import supervise as module
from rstar2.cluster.supervise import MAX_DEATHS_WITHOUT_PROGRESS, supervise
from rstar2.records import RunDirectory

pytestmark = pytest.mark.integration


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The driver's arguments are a program here."""
    monkeypatch.setattr(module, "_COMMAND", (sys.executable, "-c"))
    return []


DIE = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("code", [0, 1, 3])
def test_what_ends_by_itself_is_the_end(code: int, said: list[str], tmp_path: Path) -> None:
    assert supervise([f"raise SystemExit({code})"], [DIE], tmp_path, said.append) == code
    assert said == []


def test_a_killed_driver_goes_on_with_its_run(said: list[str], tmp_path: Path) -> None:
    begin = f"open({str(tmp_path / 'begun')!r}, 'a').write('x'); {DIE}"
    with RunDirectory.create(tmp_path / "run", verb="train", recipe_toml="", seed=0):
        pass
    assert supervise([begin], ["raise SystemExit(0)"], tmp_path / "run", said.append) == 0
    assert (tmp_path / "begun").read_text() == "x" and said == ["the driver was ended by SIGKILL: it resumes its run"]


def test_one_that_dies_before_there_is_a_run_starts_again_and_not_for_ever(said: list[str], tmp_path: Path) -> None:
    begin = f"open({str(tmp_path / 'begun')!r}, 'a').write('x'); {DIE}"
    code = supervise([begin], [DIE], tmp_path / "run", said.append)
    assert code == 128 + signal.SIGKILL
    assert len((tmp_path / "begun").read_text()) == MAX_DEATHS_WITHOUT_PROGRESS and "giving up" in said[-1]


def test_a_signal_that_somebody_sent_on_purpose_ends_it(said: list[str], tmp_path: Path) -> None:
    begin = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert supervise([begin], [DIE], tmp_path, said.append) == 128 + signal.SIGTERM
    assert said == []
