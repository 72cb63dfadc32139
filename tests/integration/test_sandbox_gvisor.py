"""The gVisor backend: with `runsc` where it is installed, and everywhere with a stand-in that runs the same bundle and
does not isolate it."""

import asyncio
import json
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rstar2.errors import UserError
from rstar2.sandbox import ExecutionStatus as S
from rstar2.sandbox import Limits, Request
from rstar2.sandbox.gvisor.executor import GvisorExecutor
from rstar2.sandbox.isolation import guarantees

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="gVisor needs Linux")]
REAL = shutil.which("runsc")
STAND_IN = f"""#!{sys.executable}
import json, os, pathlib, sys
if "run" not in sys.argv:
    sys.exit(0)
config = json.loads((pathlib.Path(sys.argv[sys.argv.index("--bundle") + 1]) / "config.json").read_text())
control = next(mount["source"] for mount in config["mounts"] if mount["destination"] == "/control")
process = config["process"]
arguments = [argument.replace("/control", control) for argument in process["args"]]
os.execve(arguments[0], arguments, dict(line.split("=", 1) for line in process["env"]))
"""


@pytest_asyncio.fixture(params=["stand-in", "gVisor"])
async def executor(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GvisorExecutor]:
    if request.param == "gVisor" and REAL is None:
        pytest.skip("there is no runsc on the PATH")
    if request.param == "stand-in":
        script = tmp_path / "runsc"
        script.write_text(STAND_IN)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with GvisorExecutor(num_slots=2) as running:
        yield running


async def test_programs_and_notebooks(executor: GvisorExecutor) -> None:
    done, failed = await asyncio.gather(
        executor.run(Request("import numpy\nprint(numpy.arange(4).sum(), input())\n6 * 7", stdin="in")),
        executor.run(Request("print('before')\n1 / 0")),
    )
    assert (done.status, done.stdout, done.value) == (S.OK, "6 in\n", "42"), done
    assert (failed.status, failed.stdout) == (S.ERROR, "before\n") and "ZeroDivisionError" in failed.stderr
    notebook = await executor.session()
    await notebook.run("x = 41")
    branch = await notebook.fork()
    assert (await branch.run("x + 1")).value == "42"
    await notebook.rollback(1)
    assert "NameError" in (await notebook.run("x")).stderr
    await notebook.close()
    await branch.close()


async def test_limits(executor: GvisorExecutor) -> None:
    endless, flood = await asyncio.gather(
        executor.run(Request("while True: pass", limits=Limits(wall_s=0.5))),
        executor.run(Request("while True: print('x' * 1000)", limits=Limits(output_bytes=10_000))),
    )
    assert (endless.status, flood.status) == (S.TIMEOUT, S.OUTPUT_LIMIT)


async def test_a_forged_reply_is_the_programs_own_error(executor: GvisorExecutor) -> None:
    forge = """
import os
for fd in range(3, 20):
    try:
        os.write(fd, b"[[[[" + bytes([10]))
    except OSError:
        pass
"""
    assert (await executor.run(Request(forge))).status is S.ERROR


async def test_nothing_is_left(executor: GvisorExecutor) -> None:
    await executor.run(Request("print(1)"))
    home = executor._gvisor._home
    assert {path.name for path in home.iterdir()} <= {"rootfs", "state"}
    await executor.close()
    assert not home.exists()


async def test_what_ended_a_program(executor: GvisorExecutor, request: pytest.FixtureRequest) -> None:
    killed, left = await asyncio.gather(
        executor.run(Request("import os; os.kill(os.getpid(), 11)")), executor.run(Request("raise SystemExit(256)"))
    )
    if request.node.callspec.params["executor"] == "gVisor":  # the stand-in is no init: it ends by the signal itself
        assert (killed.status, killed.signal) == (S.SIGNAL, 11)
    assert (left.status, left.exit_code) == (S.OK, 0)


ATTACKS = {
    "files": "import os\nprint([p for p in ('/etc/passwd', '/home', '/var', '/boot') if os.access(p, 4)])",
    "network": "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 22), 1)\nexcept OSError: print([])",
    "packages": "try:\n    import reasoning_gym\nexcept ImportError:\n    print([])",
    "kernel": "print([line for line in open('/proc/version') if 'gVisor' not in line and '4.4.0' not in line])",
    "writing": "import sys\ntry:\n    open(sys.executable, 'ab')\nexcept OSError:\n    print([])",
}


@pytest.mark.skipif(REAL is None, reason="there is no runsc on the PATH")
async def test_it_holds_off_attacks() -> None:
    async with GvisorExecutor(num_slots=2) as executor:
        names, codes = list(ATTACKS), list(ATTACKS.values())
        seen = {names[index]: run.stdout async for index, run in executor.run_many([Request(code) for code in codes])}
        assert seen == dict.fromkeys(names, "[]\n")
        eaten = "kept = []\nwhile True: kept.append(bytearray(b'x') * (8 << 20))"
        hungry = await executor.run(Request(eaten, limits=Limits(memory_bytes=256 << 20)))
        assert hungry.status is S.MEMORY


def test_without_runsc_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="apt install runsc"):
        GvisorExecutor()


def test_the_table_has_every_required_guarantee() -> None:
    assert guarantees.lacking(guarantees.describe_gvisor()) == []
    assert json.dumps([row.name for row in guarantees.describe_gvisor()])
