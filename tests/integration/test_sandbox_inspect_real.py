"""The sandbox as a provider of the real inspect_ai, in an evaluation. `make test-environments` runs this."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.environments
pytest.importorskip("inspect_ai", reason="inspect_ai is not here: `make test-environments` runs this")

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.solver import Generate, Solver, TaskState, solver  # noqa: E402
from inspect_ai.tool import bash, python  # noqa: E402
from inspect_ai.util import SandboxUserUnsupportedError, sandbox  # noqa: E402

seen: dict[str, Any] = {}


@solver
def use_sandbox() -> Solver:
    async def solve(state: TaskState, _generate: Generate) -> TaskState:
        box = sandbox()
        seen["given"] = await box.read_file("data/numbers.txt")
        await box.write_file("deep/folder/add.py", "import sys\nprint(sum(map(int, sys.argv[1:])), file=sys.stderr)")
        seen["file"] = await box.exec(["python3", "deep/folder/add.py", "1", "2"])
        seen["code"] = await box.exec(
            ["python3", "-c", "import os; print(os.environ['A'], input())"], "in", env={"A": "b"}
        )
        seen["exit"] = await box.exec(["python3", "-c", "x = 1\nopen('left', 'w').write('here')\nraise SystemExit(3)"])
        seen["fresh"] = await box.exec(["python3", "-c", "print(open('left').read())\nprint(x)"])
        seen["cwd"] = await box.exec(["python3", "-c", "import os; print(os.listdir())"], cwd="deep")
        seen["ls"] = await box.exec(["ls", "-l"])
        data = bytes(range(256)) * 40_000
        await box.write_file("large", data)
        seen["same"] = await box.read_file("large", text=False) == data
        seen["python"] = await python()(code="print(6 * 7)")
        seen["bash"] = await bash()(command="ls")
        seen["errors"] = []
        for wrong in (
            box.read_file("missing"),
            box.read_file("deep"),
            box.write_file("/etc/passwd", "root"),
            box.exec(["python3", "-c", "while True: pass"], timeout=1),
            box.exec(["python3", "-c", "1"], user="root"),
        ):
            try:
                await wrong
            except Exception as error:
                seen["errors"].append(type(error))
            else:
                seen["errors"].append(None)
        return state

    return solve


def test_an_evaluation(tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input="What is 6 * 7?", target="42", files={"data/numbers.txt": "1 2 3"})],
        solver=use_sandbox(),
        sandbox="rstar2",
    )
    [log] = eval(task, model="mockllm/model", log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    assert (seen["python"].strip(), "command not found" in seen["bash"]) == ("42", True)
    assert seen["given"] == "1 2 3"
    assert (seen["file"].returncode, seen["file"].stderr) == (0, "3\n")
    assert seen["code"].stdout == "b in\n"
    assert (seen["exit"].success, seen["exit"].returncode) == (False, 3)
    assert seen["fresh"].stdout == "here\n"
    assert (seen["fresh"].returncode, "NameError: name 'x' is not defined" in seen["fresh"].stderr) == (1, True)
    assert seen["cwd"].stdout == "['folder']\n"
    assert (seen["ls"].returncode, "command not found" in seen["ls"].stderr) == (127, True)
    assert seen["same"] is True
    missing, folder, elsewhere, endless, user = seen["errors"]
    assert (missing, folder, user) == (FileNotFoundError, IsADirectoryError, SandboxUserUnsupportedError)
    assert issubclass(elsewhere, OSError)
    assert issubclass(endless, TimeoutError)
