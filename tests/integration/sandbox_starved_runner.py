"""Runs programs on a core that busy loops hold, and prints how they ended, as JSON: a process of its own, because it
pins what it starts, and one mode gives up root.

    python sandbox_starved_runner.py '{"fast": true, "user": false, "door": "local"}' < cases.json

The host stays on all cores; the templates, and with them slots and programs, share one with the loops, each of which is
a session of its own, as the scheduler may give each session the same share.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from sandbox_attack_runner import give_up_root
from sandbox_leftovers import descendants
from sandbox_service import service

from rstar2.sandbox import Executor, Limits, LocalConfig, LocalExecutor, Request, Session
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.slots.slot_factory import SlotConfig

CORE = max(os.sched_getaffinity(0))


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops, runner = [], os.getpid()
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                os.setsid()
                os.sched_setaffinity(0, {CORE})
                while os.getppid() == runner:  # a runner that is killed leaves no loop behind
                    pass
            loops.append(pid)
        yield
    finally:
        for pid in loops:  # all at once: each needs its turn on the core to end
            os.kill(pid, signal.SIGKILL)
        for pid in loops:
            os.waitpid(pid, 0)


async def run_case(executor: Executor, session: Session | None, case: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(wall_s=case["wall_s"])
    with busy_loops(case["num_loops"]):
        if session is not None:
            result = await session.run(case["code"], limits=limits)
        else:
            result = await executor.run(Request(case["code"], limits=limits))
    return {
        "status": result.status,
        "stdout": result.stdout,
        "cpu_s": result.cpu_s,
        "wall_s": result.wall_s,
        "num_attempts": result.num_attempts,
        "message": result.message,
        "num_cells": session.num_cells if session is not None else 0,
    }


async def main(mode: dict[str, Any], cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    async with AsyncExitStack() as stack:
        config = LocalConfig(slots=SlotConfig(warm=False, fast=mode["fast"]), num_young=2)
        local = await stack.enter_async_context(LocalExecutor(config))
        executor: Executor = local
        session = None
        if mode["door"] == "session":
            session = await local.session()
            assert (await session.run("x = 'kept'")).ok
        elif mode["door"] == "http":
            running = await stack.enter_async_context(service(local))
            executor = await stack.enter_async_context(RemoteExecutor(running.url))
        assert (await executor.run(Request("print(1)"))).ok
        for pid in descendants(os.getpid()):
            os.sched_setaffinity(pid, {CORE})
        return {name: await run_case(executor, session, case) for name, case in cases.items()}


if __name__ == "__main__":
    mode = json.loads(sys.argv[1])
    if mode.get("cpu_group"):
        Path(mode["cpu_group"], "cgroup.procs").write_text(str(os.getpid()))
    if mode["user"]:
        give_up_root()
    print(json.dumps(asyncio.run(main(mode, json.load(sys.stdin)))))
