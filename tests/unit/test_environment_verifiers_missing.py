"""What needs no verifiers: a recipe that names it where it is not installed, and where an error of a taskset is."""

import importlib.metadata

import pytest

from rstar2.config import EnvironmentSection
from rstar2.environments.verifiers import VERIFIERS, _place_of
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert VERIFIERS.rows is not None
    with pytest.raises(
        UserError, match=r"verifiers:textarena needs the package verifiers: pip install 'verifiers~=0\.4"
    ):
        list(VERIFIERS.rows(EnvironmentSection(source="verifiers:textarena")))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("/lib/python3.11/asyncio/tasks.py", "/home/me/rstar2/tasks.py"), "/home/me/rstar2/tasks.py, line 2: "),
        (("/v/lib/python3.11/site-packages/words/taskset.py", "/v/lib/python3.11/site-packages/verifiers/v1/task.py"),
         "/v/lib/python3.11/site-packages/words/taskset.py, line 1: "),
        (("/v/site-packages/verifiers/v1/tasksets/textarena/taskset.py",),
         "/v/site-packages/verifiers/v1/tasksets/textarena/taskset.py, line 1: "),
        (("/v/site-packages/verifiers/v1/rollout.py", "/usr/lib/python3.11/json/decoder.py"), ""),
    ],
)  # fmt: skip
def test_an_error_is_placed_in_the_taskset(files: tuple[str, ...], expected: str) -> None:
    traceback = "".join(f'  File "{file}", line {line}, in run\n    run()\n' for line, file in enumerate(files, 1))
    assert _place_of(traceback) == expected
