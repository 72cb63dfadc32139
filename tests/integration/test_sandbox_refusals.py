"""What the machine refuses for a while (descriptors, a memory group, a template) costs callers time and no more."""

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sandbox_service import cold

from rstar2.errors import InfrastructureError
from rstar2.sandbox import Execution, ExecutionStatus, Limits, LocalExecutor, Request
from rstar2.sandbox.notebooks import tree_supply
from rstar2.sandbox.slots.templates import OwnTemplates

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")]
S = ExecutionStatus
DEADLINE_S = 240.0


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Those that are open stay so; nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def run(executor: LocalExecutor, code: str, queue_s: float = DEADLINE_S) -> Execution:
    async with asyncio.timeout(DEADLINE_S):
        return await executor.run(Request(code, limits=Limits(wall_s=30), queue_s=queue_s))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - about other processes
            await asyncio.sleep(0.01)


def memory_groups(executor: LocalExecutor) -> set[str]:
    group = executor._factory._service_group if executor._factory else None
    if group is None:
        return set()
    group.remove_slots(deadline_s=5.0)
    return {child.name for child in group.path.iterdir() if child.is_dir()}


async def test_a_slot_that_cannot_be_made_again_is_made_later() -> None:
    async with cold(num_young=1, max_slots=1) as executor:
        with no_descriptors():
            dirty = await run(executor, "open('f', 'w').write('x')\nprint('written')")
            assert (dirty.status, dirty.stdout) == (S.OK, "written\n")
            late = await run(executor, "print(1)", queue_s=0.2)
            assert late.status is S.QUEUE_TIMEOUT
            assert "Too many open files" in late.message
            waiting = asyncio.create_task(run(executor, "print(2)"))
            late = await run(executor, "print(3)", queue_s=0.2)
            assert late.status is S.QUEUE_TIMEOUT, "the clock goes on"
        assert (await waiting).stdout == "2\n"


async def test_a_new_slot_waits_for_its_memory_group() -> None:
    async with cold(num_young=1, max_slots=2) as executor:
        before = memory_groups(executor)
        busy = asyncio.create_task(run(executor, "import time\ntime.sleep(20)"))
        assert executor._dispatcher is not None
        dispatcher = executor._dispatcher
        await until(lambda: dispatcher.num_running == 1 and not dispatcher._num_young)
        with no_descriptors():
            late = await run(executor, "print(1)", queue_s=0.2)
            assert late.status is S.QUEUE_TIMEOUT
            assert "Too many open files" in late.message
        assert memory_groups(executor) == before, "a group that was half made is left"
        assert (await run(executor, "print(1)")).stdout == "1\n"
        busy.cancel()


async def test_a_session_without_descriptors_is_a_fault_of_ours() -> None:
    async with cold() as executor:
        session = await executor.session()
        before = memory_groups(executor)
        with no_descriptors():
            refused = await session.run("x = 1")
        assert refused.status is S.INFRASTRUCTURE
        assert "Too many open files" in refused.message
        assert memory_groups(executor) == before
        assert (await session.run("x = 2\nx")).value == "2"


async def test_a_session_without_a_template_leaves_no_memory_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_supply, "_TEMPLATE_WAIT_S", 0.0)
    async with cold() as executor:
        session = await executor.session()
        assert executor._factory is not None
        templates = executor._factory.templates
        assert isinstance(templates, OwnTemplates)
        template = templates.current
        assert template is not None
        before = memory_groups(executor)
        with no_descriptors():
            os.kill(template.facts["pid"], signal.SIGKILL)
            await until(lambda: templates._pool._starting is not None)
            await asyncio.sleep(0)  # it tries to start another, and cannot
        refused = await session.run("x = 1")
        assert refused.status is S.INFRASTRUCTURE
        assert memory_groups(executor) == before
        await until(lambda: templates.current is not None)
        assert (await session.run("x = 2\nx")).value == "2"


async def test_a_session_runs_while_others_have_many_descriptors_on_their_way() -> None:
    """Linux counts them for all processes of a user, and refuses to send beyond the sender's limit of open files."""
    here, there = socket.socketpair()
    with here, there:
        for _ in range(2):
            socket.send_fds(here, [b"."], [0] * 250)
        async with cold() as executor:
            assert (await (await executor.session()).run("x = 1\nx")).value == "1"


async def test_whatever_ends_the_clock_ends_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cold(num_young=1, max_slots=1) as executor:
        running = asyncio.create_task(run(executor, "import time\ntime.sleep(20)"))
        queued = asyncio.create_task(run(executor, "print(1)"))
        assert executor._dispatcher is not None
        await until(lambda: executor.status()["running"] == executor.status()["queued"] == 1)

        def broken(now: float) -> None:
            raise ValueError(f"broken at {now}")

        monkeypatch.setattr(executor._dispatcher, "_expire", broken)
        for result in await asyncio.gather(running, queued):
            assert result.status is S.INFRASTRUCTURE
            assert "broken at" in result.message
        with pytest.raises(InfrastructureError, match="broken at"):
            await run(executor, "print(2)")
