"""Files, rich results and streamed output: in this process on both paths, as an ordinary user, and over HTTP."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from sandbox_service import cold, service

from rstar2.errors import UserError
from rstar2.sandbox import Executor, FileInfo, Limits, LocalConfig, LocalExecutor, Request, Sandbox
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.slots.slot_factory import SlotConfig
from rstar2.sandbox.unsafe.executor import UnsafeExecutor

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
PNG = base64.b64encode(b"\x89PNG\r\n").decode()[:6]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["fast", "python", "http"])
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[Executor]:
    if request.param == "http":
        async with service() as running, RemoteExecutor(running.url) as remote:
            yield remote
    else:
        async with LocalExecutor(LocalConfig(slots=SlotConfig(fast=request.param == "fast"))) as executor:
            yield executor


class Heard:
    """What arrived, and when each piece did relative to the end."""

    def __init__(self) -> None:
        self.pieces: list[tuple[str, str]] = []

    def __call__(self, stream: str, text: str) -> None:
        self.pieces.append((stream, text))

    def text(self, stream: str) -> str:
        return "".join(text for name, text in self.pieces if name == stream)


# ---- files ----


async def test_a_program_gets_files_and_leaves_some(executor: Executor) -> None:
    code = "data = open('in/a.bin', 'rb').read()\nopen('out.bin', 'wb').write(data[::-1])\nlen(data)"
    wanted = ("out.bin", "in/a.bin", "nothing")
    result = await executor.run(Request(code, files={"in/a.bin": b"\xff\x00b"}, fetch_files=wanted))
    assert (result.value, result.files) == ("3", {"out.bin": b"b\x00\xff", "in/a.bin": b"\xff\x00b"})
    assert (await executor.run(Request("import os\nos.listdir()"))).value == "[]"


async def test_what_is_no_file_is_not_fetched(executor: Executor) -> None:
    code = "import os\nos.symlink('/etc/passwd', 'link')\nos.mkdir('folder')\nopen('big', 'wb').truncate(9 << 20)"
    result = await executor.run(Request(code, fetch_files=("link", "folder", "big")))
    assert result.ok and result.files == {}


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../a", "a/../../b", "a//b", ".", "a\0b", "x" * 256, "a/" * 40 + "b"]
)
async def test_hostile_paths_are_refused(executor: Executor, path: str) -> None:
    with pytest.raises(UserError, match="path"):
        await executor.run(Request("1", files={path: b""}))
    session = await executor.session()
    for use in (session.read_file(path), session.put_file(path, b"")):
        with pytest.raises(UserError, match="path"):
            await use
    await session.close()


async def test_a_notebook_gets_files_that_rollback_and_fork_respect(executor: Executor) -> None:
    session = await executor.session()
    await session.run("x = 1")
    await session.put_file("data/a.txt", b"one")
    assert session.num_cells == 2
    assert (await session.run("open('data/a.txt').read() + str(x)")).value == "'one1'"
    branch = await session.fork()
    await branch.put_file("data/a.txt", b"two")
    assert (await session.read_file("data/a.txt"), await branch.read_file("data/a.txt")) == (b"one", b"two")
    assert await session.list_files() == [FileInfo("data/a.txt", 3)]
    await session.rollback(2)
    assert await session.list_files() == [] and (await session.run("x")).value == "1"
    for notebook in (session, branch):
        await notebook.close()


async def test_links_of_a_cell_lead_nowhere(executor: Executor) -> None:
    session = await executor.session()
    await session.run("import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/', 'root')\nos.mkdir('folder')")
    for path in ("link", "root/etc/passwd", "folder", "nothing"):
        with pytest.raises(UserError, match="path"):
            await session.read_file(path)
    with pytest.raises(UserError, match="path"):
        await session.put_file("root/tmp/a", b"")
    await session.put_file("link", b"mine")  # the link is replaced, not followed
    assert await session.read_file("link") == b"mine"
    assert await session.list_files() == [FileInfo("link", 4)]
    await session.close()


async def test_files_have_a_size(executor: Executor) -> None:
    session = await executor.session()
    with pytest.raises(UserError, match="too large"):
        await session.put_file("a", bytes((16 << 20) + 1))
    await session.run("open('big', 'wb').truncate(17 << 20)")
    with pytest.raises(UserError, match="large"):
        await session.read_file("big")
    await session.close()


async def test_what_a_cell_patches_does_not_reach_its_files(executor: Executor) -> None:
    session = await executor.session()
    await session.run("import builtins, os\nopen('a', 'w').write('true')\nos.read = os.open = builtins.open = None")
    assert await session.read_file("a") == b"true"
    await session.close()


# ---- rich results ----


async def test_the_last_value_and_display_have_representations(executor: Executor) -> None:
    code = """
class Rich:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_png_(self): return b"\\x89PNG\\r\\n"
    def _repr_json_(self): return {"a": [1]}
    def _repr_latex_(self): raise ValueError
    def __repr__(self): return "Rich()"
display(1, Rich())
Rich()
"""
    result = await executor.run(Request(code, rich=True))
    expected = {"text/html": "<b>x</b>", "image/png": "iVBORw0K", "application/json": '{"a": [1]}'}
    assert result.value == "Rich()" and result.stderr == ""
    assert [display.is_result for display in result.displays] == [False, False, True]
    assert result.displays[0].data == {"text/plain": "1"}
    assert result.displays[1].data == result.displays[2].data == {"text/plain": "Rich()", **expected}


async def test_figures_are_shown_as_a_notebook_shows_them(executor: Executor) -> None:
    pytest.importorskip("matplotlib")
    session = await executor.session()
    code = "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\n"
    limits = Limits(wall_s=60, cpu_s=60)
    result = await session.run(code + "plt.plot([1])\nplt.show()\nplt.plot([2]);", "", limits, rich=True)
    assert result.ok and result.stderr == "", result.stderr
    assert [display.data["image/png"][:6] for display in result.displays] == [PNG, PNG]
    result = await session.run("plt.get_fignums()", "", limits, rich=True)
    assert (result.value, len(result.displays)) == ("[]", 1)
    await session.close()


async def test_an_exception_is_told_apart_from_what_was_printed(executor: Executor) -> None:
    result = await executor.run(Request("import sys\nsys.stderr.write('mine')\n{}['k']", rich=True))
    assert result.stderr == "mine" and result.error is not None
    assert (result.error.name, result.error.value) == ("KeyError", "'k'")
    assert result.error.traceback.startswith("Traceback") and "line 3" in result.error.traceback


async def test_a_plain_cell_is_as_before(executor: Executor) -> None:
    result = await executor.run(Request("display(1)"))
    assert not result.ok and "NameError" in result.stderr and result.displays == () and result.error is None


@pytest.mark.parametrize(
    "written",
    ["b'r'", "b'r' + b'\\xff' * 100_000", "b'v' * 1000", "b'm'", "b'r' + b'\\x05' * 70", "os.urandom(100_000)"],
)
async def test_forged_records_are_the_programs_own_result(executor: Executor, written: str) -> None:
    forged = f"import os\nos.write(3, {written})\nos._exit(0)"
    result = await executor.run(Request(forged, rich=True, fetch_files=("a",)))
    assert not result.status.is_sandbox_fault and result.files == {}
    session = await executor.session()
    assert not (await session.run(forged, rich=True)).status.is_sandbox_fault
    assert (await session.run("1 + 1")).value == "2"
    await session.close()


async def test_displays_have_a_bound(executor: Executor) -> None:
    many = await executor.run(Request("for i in range(1000): display(i)", rich=True))
    assert many.ok and len(many.displays) == 64
    code = "class Big:\n    def _repr_html_(self): return 'x' * (7 << 20)\n    def __repr__(self): return 'Big'\nBig()"
    big = await executor.run(Request(code, rich=True))
    assert big.ok and [display.data for display in big.displays] == [{"text/plain": "Big"}]
    flood = await executor.run(
        Request("import os\nos.write(3, b'r')\nwhile True: os.write(3, bytes(65536))", rich=True)
    )
    assert flood.status == "output_limit"


# ---- streamed output ----


async def test_output_arrives_while_the_program_runs(executor: Executor) -> None:
    code = (
        "import sys, time\nprint('é' * 3, flush=True)\nprint('e', file=sys.stderr)\nsys.stdin.readline()\nprint('end')"
    )
    heard = Heard()
    session = await executor.session()
    sleeping = code.replace("sys.stdin.readline()", "time.sleep(0.5)")
    for running in (executor.run(Request(sleeping), heard), session.run(sleeping, on_output=heard)):
        heard.pieces.clear()
        result = await running
        assert heard.text("stdout") == result.stdout == "ééé\nend\n"
        assert heard.text("stderr") == result.stderr == "e\n"
        assert len([1 for stream, _ in heard.pieces if stream == "stdout"]) >= 2
    await session.close()


async def test_bytes_that_are_no_text_are_streamed_as_they_are_returned(executor: Executor) -> None:
    code = "import os, time\nfor i in range(300):\n    os.write(1, bytes([i % 256, 0xc3]))\n    time.sleep(0.001)"
    heard = Heard()
    result = await executor.run(Request(code), heard)
    assert result.ok and heard.text("stdout") == result.stdout


async def test_a_callback_that_raises_ends_nothing(executor: Executor) -> None:
    def fails(_: str, __: str) -> None:
        raise RuntimeError

    assert (await executor.run(Request("print(1)"), fails)).stdout == "1\n"
    assert (await executor.run(Request("print(2)"))).stdout == "2\n"


async def test_a_stream_of_a_reader_that_stops_reading_ends() -> None:
    settings = ServiceSettings(transfer_timeout_s=0.5)
    limits = {"output_bytes": 16 << 20, "wall_s": 60, "cpu_s": 60}
    body = {"code": "import sys\nwhile True: sys.stdout.write('x' * 65536)", "limits": limits}
    async with service(settings=settings) as running, aiohttp.ClientSession() as http:
        async with http.post(f"{running.url}/v1/run/stream", json=body) as response:
            assert response.status == 200
            async with asyncio.timeout(240):
                await running.service.idle.wait()
        assert running.service.num_in_flight == 0


async def test_a_caller_that_leaves_ends_its_stream() -> None:
    body = {"code": "print(1, flush=True)\nimport time\ntime.sleep(600)", "limits": {"wall_s": 700}}
    async with service() as running, aiohttp.ClientSession() as http:
        async with http.post(f"{running.url}/v1/run/stream", json=body) as response:
            assert (await response.content.readline()) == b'{"stream":"stdout","text":"1\\n"}\n'
            response.close()
        async with asyncio.timeout(240):
            await running.service.idle.wait()


# ---- elsewhere ----


async def test_plain_subprocesses_have_files_and_streams() -> None:
    async with UnsafeExecutor() as executor:
        heard = Heard()
        request = Request("print(open('a').read())\nopen('b', 'w').write('B')", files={"a": b"A"}, fetch_files=("b",))
        result = await executor.run(request, heard)
        assert (result.files, heard.text("stdout")) == ({"b": b"B"}, "A\n")
        session = await executor.session()
        await session.put_file("d/a", b"A")
        assert (await session.run("open('d/a').read()")).value == "'A'"
        branch = await session.fork()
        assert await branch.read_file("d/a") == b"A" and await branch.list_files() == [FileInfo("d/a", 1)]
        with pytest.raises(UserError, match="No such file"):
            await branch.read_file("b")


def use_all(sandbox: Sandbox) -> tuple[Any, ...]:
    heard = Heard()
    result = sandbox.run("print(1)\n2", rich=True, files={"a": b"A"}, fetch_files=["a"], on_output=heard)
    with sandbox.session() as notebook:
        notebook.put_file("b", b"B")
        read = notebook.read_file("b"), notebook.list_files()
        cell = notebook.run("print(open('b').read())", on_output=heard)
    return result.files, [display.data for display in result.displays], read, cell.stdout, heard.text("stdout")


EXPECTED = ({"a": b"A"}, [{"text/plain": "2"}], (b"B", [FileInfo("b", 1)]), "B\n", "1\nB\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="it is an ordinary user already")
async def test_an_ordinary_user_has_the_same() -> None:
    code = (
        "import sandbox_attack_runner, test_sandbox_doors as doors\n"
        "sandbox_attack_runner.give_up_root()\n"
        "with doors.Sandbox(executor=doors.cold) as sandbox:\n    found = doors.use_all(sandbox)\n"
        "assert found == doors.EXPECTED, found\n"
    )
    import sys
    from pathlib import Path

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0, errors.decode()


async def test_blocking_calls_have_the_same() -> None:
    def use() -> tuple[Any, ...]:
        with Sandbox(executor=cold) as sandbox:
            return use_all(sandbox)

    assert await asyncio.to_thread(use) == EXPECTED
