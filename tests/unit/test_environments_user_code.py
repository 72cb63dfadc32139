"""Loading a user's code, and calling it under a deadline."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rstar2.environments.user_code import Caller, load_object
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError

SKIPS = Caller(deadline_s=30.0, stops=False)
HURRIES = Caller(deadline_s=0.3, stops=False)


def test_a_file_is_run_once_and_may_import_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 3\n")
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from neighbour_of_mine import VALUE\n"
        "RUNS = []\nRUNS.append(VALUE)\n"
        "@dataclass\nclass Mine:\n    value: 'int' = VALUE\n"
        "def later():\n    import neighbour_of_mine\n    return neighbour_of_mine.VALUE\n"
    )
    monkeypatch.chdir(tmp_path)
    mine = load_object("file:mine.py:Mine", "environment.source")
    assert mine().value == 3
    assert load_object(f"file:{tmp_path}/mine.py:later", "environment.reward")() == 3
    assert load_object("file:../" + tmp_path.name + "/mine.py:RUNS", "other") == [3]
    assert load_object("json:loads", "x")("[1]") == [1]


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        ("", "mine.py", "field: 'mine.py' must be file:PATH.py:NAME or package.module:NAME"),
        ("", "file:other.py:Mine", "field: there is no file /.*other.py"),
        ("x = 1\n", "file:mine.py:Mine", "field: mine.py defines no Mine$"),
        ("class Mines: ...\n", "file:mine.py:Mine", r"field: mine.py defines no Mine; did you mean Mines\?"),
        ("x = (1\n", "file:mine.py:Mine", r"field: .*mine.py, line 1: '\(' was never closed"),
        ("x = 1\nimport no_such_thing\n", "file:mine.py:Mine", "mine.py, line 2: No module.*install no_such_thing, or"),
        ("\n\nraise SystemExit(3)\n", "file:mine.py:Mine", "field: .*mine.py, line 3: SystemExit: 3"),
        ("import json\njson.loads('x')\n", "file:mine.py:Mine", "mine.py, line 2: JSONDecodeError"),
        ("", "file:mine.txt:Mine", "mine.txt is not a Python file: its name must end in .py"),
        ("", "no_such_package.module:Mine", "field: No module named 'no_such_package'; install no_such_package"),
    ],
)
def test_mistakes_of_a_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, spec: str, message: str
) -> None:
    for name in ("mine.py", "mine.txt"):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        load_object(spec, "field")


def test_a_file_that_failed_can_be_mended(tmp_path: Path) -> None:
    (tmp_path / "mended.py").write_text("raise KeyError\n")
    with pytest.raises(UserError, match="KeyError"):
        load_object(f"file:{tmp_path}/mended.py:VALUE", "field")
    (tmp_path / "mended.py").write_text("VALUE = 'it is right now'\n")
    assert load_object(f"file:{tmp_path}/mended.py:VALUE", "field") == "it is right now"


async def test_async_and_other_functions_return_what_they_return() -> None:
    async def answer(of: int) -> int:
        return of + 1

    assert await SKIPS.call("it", answer, 2) == 3
    assert await SKIPS.call("it", lambda: answer(3)) == 4
    assert await SKIPS.call("it", threading.get_ident) != threading.get_ident()


def _raises(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("k"), r"it: .*test_environments_user_code.py, line \d+: KeyError: 'k'"),
        (TimeoutError("slow disk"), "TimeoutError: slow disk"),
        (SystemExit(3), "SystemExit: 3"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "Cancelled"),
        (_UnprintableError(), r"its message cannot be printed \(RuntimeError\)"),
        (OSError("x" * 1_000_000), r"x{500}… \(1000000 characters\)$"),
    ],
)
async def test_whatever_is_raised_is_a_fault(error: BaseException, message: str, is_async: bool) -> None:
    function = _raises(error)

    async def coroutine() -> Any:
        return function()

    with pytest.raises(EnvironmentCodeError, match=message):
        await SKIPS.call("it", coroutine if is_async else function)
    with pytest.raises(UserError, match=message):
        await Caller(30.0, stops=True).call("it", coroutine if is_async else function)


async def test_our_own_errors_pass() -> None:
    for error in (UserError("u"), InfrastructureError("i")):
        with pytest.raises(type(error), match=f"^{error}$"):
            await SKIPS.call("it", _raises(error))


async def test_the_line_of_a_user_is_named_and_not_that_of_a_package() -> None:
    import numpy as np

    def function() -> Any:
        return np.load("/no/such/file.npy")

    with pytest.raises(
        EnvironmentCodeError, match=r"it: .*test_environments_user_code.py, line \d+: FileNotFoundError"
    ):
        await SKIPS.call("it", function)


async def test_a_hung_function_is_named_by_the_line_where_it_is() -> None:
    go_on = threading.Event()

    def hangs() -> None:
        go_on.wait()

    line = hangs.__code__.co_firstlineno + 1
    with pytest.raises(EnvironmentCodeError, match=f"user_code.py, line {line}: no answer within 0.3 s"):
        await HURRIES.call("it", hangs)
    go_on.set()


async def test_a_hung_coroutine_is_named_by_the_line_where_it_is_and_cancelled() -> None:
    was_cancelled = asyncio.Event()

    async def inner() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    async def outer() -> None:
        await inner()

    line = inner.__code__.co_firstlineno + 2
    with pytest.raises(EnvironmentCodeError, match=f"user_code.py, line {line}: no answer within 0.3 s"):
        await HURRIES.call("it", outer)
    assert was_cancelled.is_set()


async def test_a_coroutine_that_refuses_to_be_cancelled_does_not_hold_up_its_caller() -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(EnvironmentCodeError, match=r"no answer within 0.3 s"):
        await HURRIES.call("it", stubborn)
    may_end.set()


async def test_cancelling_the_caller_cancels_a_coroutine() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    calling = asyncio.create_task(SKIPS.call("it", waits))
    await started.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()


def test_a_hung_function_does_not_hold_up_the_end_of_the_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from rstar2.environments.user_code import Caller\n"
        "from rstar2.errors import EnvironmentCodeError\n"
        "try:\n"
        "    asyncio.run(Caller(0.1, False).call('it', threading.Event().wait))\n"
        "except EnvironmentCodeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "it: no answer within 0.1 s\n"
