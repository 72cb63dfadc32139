"""`rstar2 sandbox serve` as a whole, with its processes killed under load."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rstar2.sandbox import Execution, ExecutionStatus, Limits, Request
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http.access import find_token
from rstar2.sandbox.isolation.guarantees import probe

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        any(row.required and not row.provided for row in probe()), reason="this machine cannot isolate programs"
    ),
]


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of services that are killed stay behind."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


class Service:
    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {find_token(self.address)}"}

    def children(self, pid: int | None = None) -> list[int]:
        pid = pid or self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def children_like(self, text: str) -> list[int]:
        return [pid for pid in self.children() if text in Path(f"/proc/{pid}/cmdline").read_text()]

    @property
    def servers(self) -> list[int]:
        return self.children_like("run_server_process")

    @property
    def templates(self) -> list[int]:
        return self.children_like("template_process")

    @property
    def slots(self) -> list[int]:
        return [slot for template in self.templates for slot in self.children(template)]

    def everyone(self) -> list[int]:
        return [self.process.pid, *self.servers, *self.templates, *self.slots]


@asynccontextmanager
async def running_service() -> AsyncIterator[Service]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rstar2", "sandbox", "serve", "--port", "0"), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(240):
            while line := (await process.stderr.readline()).decode():
                if line.startswith("serving on "):
                    break
        assert line, "the service ended before it served"
        draining = asyncio.create_task(process.stderr.read())
        yield Service(process, line.split()[2])
        draining.cancel()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def groups_of(pid: int) -> list[Path]:
    return [*Path("/sys/fs/cgroup").glob(f"**/rstar2-sandbox-{pid}-*")]


def are_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def wait_until(condition, what: str, timeout_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"waited {timeout_s} s for: {what}"
        await asyncio.sleep(0.02)


async def run_under_load(service: Service, count: int, harm) -> list[Execution]:  # type: ignore[no-untyped-def]
    """`count` executions, and in the middle of them the harm."""
    results: dict[int, Execution] = {}
    async with RemoteExecutor(service.address) as executor:
        requests = [Request(f"import time; time.sleep(0.01); print({number})") for number in range(count)]
        async for index, execution in executor.run_many(requests):
            assert index not in results, "answered twice"
            results[index] = execution
            if len(results) == count // 3:
                harm()
    assert len(results) == count, "lost"
    for index, execution in results.items():
        assert execution.status.is_sandbox_fault or execution.stdout == f"{index}\n"
    return list(results.values())


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def test_killing_slots_template_or_server_under_load_loses_nothing() -> None:
    async with running_service() as service:
        await wait_until(lambda: len(service.templates) == 2, "two templates")
        for harm in (
            lambda: kill_all(service.slots),
            lambda: kill_all(service.templates[:1]),
            lambda: kill_all(service.servers[:1]),
        ):
            results = await run_under_load(service, 300, harm)
            assert all(execution.status is ExecutionStatus.OK for execution in results)
        await wait_until(lambda: len(service.templates) == 2 and len(service.servers) == 2, "the spares are back", 30.0)


async def test_hung_slots_are_given_up_and_their_calls_repeated() -> None:
    async with running_service() as service, RemoteExecutor(service.address) as executor:
        await executor.run(Request("1"))
        for slot in service.slots[:2]:
            os.kill(slot, signal.SIGSTOP)
        request = Request("import time; time.sleep(0.05); print(1)", limits=Limits(wall_s=0.5))
        results = [execution async for _, execution in executor.run_many([request] * 32)]
        assert {execution.stdout for execution in results} == {"1\n"}
        assert max(execution.num_attempts for execution in results) > 1


async def test_nothing_is_left_after_the_supervisor_is_killed_under_load() -> None:
    async with running_service() as service, aiohttp.ClientSession(headers=service.headers) as session:
        body = {"runs": [{"code": "import time; time.sleep(30)"}] * 32}
        request = asyncio.create_task(session.post(f"{service.address}/v1/batch", json=body))
        await wait_until(lambda: len(service.slots) > 8, "slots at work")
        everyone = service.everyone()
        assert len(everyone) > 12
        os.kill(service.process.pid, signal.SIGKILL)
        await wait_until(lambda: are_gone(everyone), "all gone")
        await wait_until(lambda: not groups_of(service.process.pid), "cgroups gone")
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def test_sigterm_drains_and_leaves_nothing() -> None:
    async with running_service() as service:
        async with RemoteExecutor(service.address) as executor:
            running = asyncio.create_task(executor.run(Request("import time; time.sleep(2); print('done')")))
            await wait_until(lambda: any(map(service.children, service.slots)), "the program")
            everyone = service.everyone()
            service.process.terminate()
            assert (await running).stdout == "done\n"
        assert await asyncio.wait_for(service.process.wait(), 240) == 0
        assert are_gone(everyone)
