"""Attacks that are no single program: on the pool, on the limits a caller may name, on the memory map."""

import asyncio
import os
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
                async with asyncio.timeout(30):
                    run = await executor.run(Request("print(1)", limits=Limits(**fields)))
                if run.status.is_sandbox_fault:
                    wrong.append(f"{fields}: {run.status}")
            except (UserError, ValueError):
                pass
            except Exception as error:
                wrong.append(f"{fields}: {error!r}")
        try:
            async with asyncio.timeout(30):
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
        inits = {slot.pid for slot in executor._dispatcher._slots} | {tree.pid for tree in executor._sessions._trees}
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


SCENARIOS: dict[str, Scenario] = {
    "a pool filled with sleepers and endless loops": pool_of_sleepers,
    "limits beyond all measure": absurd_limits,
    "memory shared between callers": writable_memory_is_nobody_elses,
}
