"""Attacks that are no single program: on the pool, on the limits a caller may name, on the memory map."""

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandbox_attacks import MIB, Mode, limits

from rstar2.errors import UserError
from rstar2.sandbox import Limits, Request
from rstar2.sandbox.local import LocalConfig, LocalExecutor
from rstar2.sandbox.slots.slot_factory import SlotConfig

Scenario = Callable[[Mode], Awaitable[list[str]]]


def _executor(mode: Mode, *, num_young: int = 2, max_slots: int = 2) -> LocalExecutor:
    slots = SlotConfig(fast=mode.is_fast, warm=False)
    return LocalExecutor(LocalConfig(slots=slots, num_young=num_young, max_slots=max_slots))


async def pool_of_sleepers(mode: Mode) -> list[str]:
    """Sleepers and endless loops hold neither the cores nor the queue: short programs pass them."""
    async with _executor(mode, num_young=2, max_slots=48) as executor:
        hog, sleeper = "while True: pass", "import time; time.sleep(60)"
        long = limits(wall_s=40, cpu_s=40)
        hogs = [executor.run(Request(hog if number % 4 else sleeper, limits=long)) for number in range(24)]
        held = [asyncio.create_task(running) for running in hogs]
        while executor.status()["running"] < len(held):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        short = [await executor.run(Request("print(6 * 7)")) for _ in range(20)]
        wrong = [str(run) for run in short if run.stdout != "42\n"]
        wrong += [f"short programs waited for a hog: {task.result()}" for task in held if task.done()]
        for task in held:
            task.cancel()
    return wrong


async def absurd_limits(mode: Mode) -> list[str]:
    """What a caller asks for may be refused or clamped, never break the executor for others."""
    huge = 1 << 70
    asked: tuple[dict[str, Any], ...] = (
        *({name: huge} for name in ("memory_bytes", "output_bytes", "num_processes", "file_bytes")),
        *({name: 1} for name in ("memory_bytes", "output_bytes", "num_processes", "file_bytes")),
        *({name: value} for name in ("wall_s", "cpu_s") for value in (1e-9, 1e18, float("inf"))),
        *({"memory_bytes": value} for value in (4096, MIB, 16 * MIB)),
    )
    wrong = []
    async with _executor(mode) as executor:
        for fields in asked:
            try:
                async with asyncio.timeout(240):
                    run = await executor.run(Request("print(1)", limits=Limits(**fields)))
                if run.status.is_sandbox_fault:
                    wrong.append(f"{fields}: {run.status}")
            except (UserError, ValueError):
                pass
            except Exception as error:
                wrong.append(f"{fields}: {error!r}")
        try:
            async with asyncio.timeout(240):
                after = await asyncio.gather(*(executor.run(Request("print(6 * 7)")) for _ in range(4)))
            wrong += [f"afterwards: {run}" for run in after if run.stdout != "42\n"]
        except TimeoutError:
            wrong.append("afterwards nothing runs any more")
    return wrong


async def writable_memory_is_nobody_elses(mode: Mode) -> list[str]:
    """A mapping that is shared and writable would be a letter box between callers; /proc outside tells."""
    async with _executor(mode) as executor:
        running = asyncio.create_task(executor.run(Request("import time; time.sleep(1)", limits=limits(wall_s=3))))
        session = await executor.session()
        cell = asyncio.create_task(session.run("import time; time.sleep(1)", limits=limits(wall_s=3)))
        await asyncio.sleep(0.5)
        assert executor._dispatcher is not None and executor._sessions is not None
        inits = {slot.pid for slot in executor._dispatcher._slots} | {
            tree.pid for tree in executor._sessions.trees.live
        }
        maps = _memory_maps_of_children(inits)
        await asyncio.gather(running, cell)
    wrong = [line for line in maps if line.split()[1][1] == "w" and line.split()[1][3] == "s"]
    if not maps and os.geteuid() == 0:
        wrong.append("no program was seen")
    return wrong


def _memory_maps_of_children(parents: set[int]) -> list[str]:
    """Lines of /proc/*/maps; none where an ordinary user may not look, whose programs run the same code as root's."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1]) in parents:
                lines += (folder / "maps").read_text().splitlines()
    return lines


FUZZ = """
import ctypes, os, random, signal
chance = random.Random({seed})
libc = ctypes.CDLL(None, use_errno=True)
memory = ctypes.create_string_buffer(1 << 16)
path = ctypes.create_string_buffer(b"./x")
here, there = ctypes.addressof(memory), ctypes.addressof(path)
values = [0, 1, 2, 3, 4, 5, 63, 255, 4096, 1 << 16, 1 << 31, 1 << 32, -1, -100, os.getpid(), os.getppid(), here,
          here + 8, there, 0o777, 0o100, 0o4000, 0x10000000, 0x7E020000]
signal.setitimer(signal.ITIMER_REAL, 0.05)
for _ in range(24):
    number = chance.randrange(470)
    arguments = [chance.choice(values) if chance.random() < 0.8 else chance.getrandbits(64) for _ in range(6)]
    for position in range(0, 512, 8):
        ctypes.c_uint64.from_address(here + position).value = chance.choice(values) & 0xFFFFFFFFFFFFFFFF
    libc.syscall(ctypes.c_long(number), *(ctypes.c_ulong(one & 0xFFFFFFFFFFFFFFFF) for one in arguments))
"""
NUM_FUZZED, FUZZ_S, FUZZ_AT_ONCE = 2500, 20.0, 100


async def random_system_calls(mode: Mode) -> list[str]:
    """Thousands of programs of random calls with random and crafted arguments: each ends by its own doing, and host,
    service and neighbours are as before. The four modes together run ten thousand, or as many as there is time for."""
    small = Limits(wall_s=2, cpu_s=1, memory_bytes=128 * MIB, num_processes=8, output_bytes=1 << 16)
    wrong: list[str] = []
    async with _executor(mode, num_young=4, max_slots=8) as executor:
        neighbour = await executor.session()
        await neighbour.run("x = 41")
        before = _own_resources()
        started, num_run = time.monotonic(), 0
        while num_run < NUM_FUZZED and (time.monotonic() - started < FUZZ_S or not num_run):
            requests = [Request(FUZZ.format(seed=num_run + n), limits=small) for n in range(FUZZ_AT_ONCE)]
            async for index, run in executor.run_many(requests):
                if run.status.is_sandbox_fault:
                    wrong.append(f"seed {num_run + index}: {run.status} {run.message}")
            num_run += FUZZ_AT_ONCE
        after = await asyncio.gather(*(executor.run(Request("print(6 * 7)")) for _ in range(16)))
        wrong += [f"afterwards: {run}" for run in after if run.stdout != "42\n"]
        if (await neighbour.run("x + 1")).value != "42":
            wrong.append("the notebook beside it lost its state")
        if _own_resources() != before:
            wrong.append(f"the host's process changed: {before} became {_own_resources()}")
    return wrong


def _own_resources() -> tuple[int, ...]:
    """Of the host's process: what a program could reach only by leaving its sandbox."""
    limits_now = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)]
    return os.getpriority(os.PRIO_PROCESS, 0), os.getpgrp(), *limits_now, len(os.sched_getaffinity(0))


async def process_ids_as_letters(mode: Mode) -> list[str]:
    """What a program counts up, the next one on its slot cannot read."""
    forks = "import os\nfor _ in range(7):\n    if os.fork() == 0:\n        os._exit(0)\n    os.wait()"
    threads = "import threading\nfor _ in range(7):\n    threading.Thread(target=int).start()"
    async with _executor(mode, num_young=1, max_slots=1) as executor:
        seen = []
        for program in (forks, threads):
            await executor.run(Request(program))
            seen.append((await executor.run(Request("import os\nprint(os.getpid())"))).stdout)
    return [] if seen == ["2\n", "2\n"] else [f"it saw the process ids {seen}"]


async def branches_at_the_same_time(mode: Mode) -> list[str]:
    """A cell that waits for its turn does not find the files of the branch that had it."""
    async with _executor(mode) as executor:
        notebook = await executor.session()
        await notebook.run("import os, time")
        branch = await notebook.fork()
        letter = "open('letter', 'w').close()\nprint('written', flush=True)\ntime.sleep(0.3)"
        is_written = asyncio.Event()
        writing = asyncio.create_task(branch.run(letter, on_output=lambda *_: is_written.set()))
        await is_written.wait()
        seen = await notebook.run("os.listdir('.')")
        await writing
    return [] if seen.value == "[]" else [f"it saw {seen}"]


SCENARIOS: dict[str, Scenario] = {
    "branches of a notebook at the same time": branches_at_the_same_time,
    "process ids as letters": process_ids_as_letters,
    "random system calls": random_system_calls,
    "a pool filled with sleepers and endless loops": pool_of_sleepers,
    "limits beyond all measure": absurd_limits,
    "memory shared between callers": writable_memory_is_nobody_elses,
}
