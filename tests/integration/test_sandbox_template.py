"""What a warm template holds: the libraries that programs use, one thread, and nothing that only a trainer needs."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.sandbox.executor import Request
from rstar2.sandbox.local import LocalConfig, LocalExecutor
from rstar2.sandbox.slots import wire
from rstar2.sandbox.slots.slot import socket_pair
from rstar2.sandbox.slots.slot_factory import SlotConfig, SlotFactory
from rstar2.sandbox.slots.template_process import TemplateConfig
from rstar2.sandbox.slots.templates import _spawn

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")]

SQLITE = """
import sqlite3
for _ in range(2):
    with sqlite3.connect("numbers.db") as numbers:
        numbers.execute("create table if not exists squares (n, square)")
        numbers.executemany("insert into squares values (?, ?)", [(n, n * n) for n in range(10)])
    numbers.close()
print(sqlite3.connect("numbers.db").execute("select sum(square) from squares").fetchone())
"""
PANDAS = """
import io, sys
import pandas as pd
print([name for name in sys.modules if name.split(".")[0] == "pyarrow"])
frame = pd.read_csv(io.StringIO("name,score\\nada,3\\ngrace,4\\nada,5\\n"))
print(frame["name"].dtype, frame["name"].dtype.storage)
print(frame.groupby("name")["score"].sum().to_string())
print(pd.DataFrame({"word": ["b", "a", None]}).sort_values("word").to_string())
"""
PRINTED = """\
[]
str python
name
ada      8
grace    4
  word
1    a
0    b
2  NaN
"""


def template_pid(executor: LocalExecutor) -> int:
    assert executor._factory is not None
    template = executor._factory.templates.current
    assert template is not None
    pid: int = template.facts["pid"]
    return pid


@pytest.mark.parametrize("fast", [True, False])
async def test_pandas_behaves_as_without_pyarrow_whether_or_not_it_is_installed(fast: bool) -> None:
    pytest.importorskip("pandas", minversion="3.0")
    async with LocalExecutor(LocalConfig(SlotConfig(fast=fast))) as executor:
        assert (await executor.run(Request(PANDAS))).stdout == PRINTED
        process = Path(f"/proc/{template_pid(executor)}")
        assert len(list((process / "task").iterdir())) == 1
        if not fast:  # the fast path maps an image of its memory, which has no names
            mapped = (process / "maps").read_text()
            assert "/pandas/" in mapped and "pyarrow" not in mapped


async def test_a_program_sees_the_packages_that_the_operator_adds() -> None:
    pytest.importorskip("pyarrow")
    request = Request("import pyarrow; print(pyarrow.array([1, 2]).sum())")
    async with LocalExecutor(LocalConfig(SlotConfig(warm=False))) as executor:
        assert "ModuleNotFoundError" in (await executor.run(request)).stderr
    async with LocalExecutor(LocalConfig(SlotConfig(warm=False, packages=("pyarrow",)))) as executor:
        imported = await executor.run(request)
        assert imported.stdout == "3\n", imported
    with pytest.raises(UserError, match="packages: 'no-such-package' is not installed"):
        await LocalExecutor(LocalConfig(SlotConfig(packages=("no-such-package",)))).start()


async def test_sqlite_writes_files_without_locks() -> None:
    async with LocalExecutor() as executor:
        written = await executor.run(Request(SQLITE))
        assert written.stdout == "(570,)\n", written


async def test_a_process_that_takes_the_place_of_another_has_another_uid() -> None:
    """What is left of the other may still be dying, and would count against it."""
    async with LocalExecutor(LocalConfig(num_young=1, max_slots=1)) as executor:
        assert executor._factory is not None
        if not executor._factory.layers.distinct_uid:
            pytest.skip("programs have a uid of their own only where root starts them")
        show = "import os\nprint(os.getuid())"
        first, again = [(await executor.run(Request(show))).stdout for _ in range(2)]
        assert first == again
        await executor.run(Request("open('left', 'w').close()"))
        assert (await executor.run(Request(show))).stdout not in ("", first)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("kind", [wire.KIND_STATELESS, wire.KIND_SESSION])
async def test_slots_that_nobody_wants_any_more_when_they_are_born_end_in_silence(
    kind: int, fast: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when a short command ends on a busy machine: their memory groups and their template are gone before them."""
    host = SlotFactory(SlotConfig(warm=False, fast=fast))
    await host.start()
    template = host.templates.current
    assert template is not None
    os.kill(template.facts["pid"], signal.SIGSTOP)
    callers = []
    for number in range(8):
        group = host.make_memory_group(f"slot-{number}")
        ours, theirs = socket_pair()
        with theirs:
            assert host.fork_slot(kind, number, theirs, group, lambda _: None)
        ours.shutdown(socket.SHUT_WR)
        callers.append(ours)
        if group is not None:
            host.retire_memory_group(group)
            assert host._service_group is not None
            host._service_group.remove_slots()
            assert not group.path.exists()
    os.kill(template.facts["pid"], signal.SIGCONT)
    await host.close()
    for ours in callers:
        with ours:
            ours.settimeout(240)
            assert ours.recv(1) == b"", "it is gone"
    assert capfd.readouterr().err == ""


async def test_a_template_whose_host_is_gone_before_it_is_ready_ends_in_silence(
    capfd: pytest.CaptureFixture[str],
) -> None:
    host = SlotFactory(SlotConfig(warm=False))
    group = host._service_group
    process, ours = _spawn(TemplateConfig(host.layers, warm=False, service_group=str(group.path) if group else None))
    ours.close()
    assert process.wait(timeout=240) == 0
    assert capfd.readouterr().err == ""
    assert group is None or not group.path.exists(), "it cleans up after its host"
