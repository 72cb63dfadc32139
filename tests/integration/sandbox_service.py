"""A real service on loopback for tests, in the test's own loop or on a thread for clients that block."""

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from rstar2.errors import InfrastructureError
from rstar2.records import Verdict
from rstar2.sandbox import (
    Execution,
    ExecutionStatus,
    Executor,
    FileInfo,
    Limits,
    LocalConfig,
    LocalExecutor,
    OnOutput,
    Request,
    Session,
)
from rstar2.sandbox.executor import Overloaded
from rstar2.sandbox.http import Server, ServiceSettings, create_app
from rstar2.sandbox.http.app import SERVICE
from rstar2.sandbox.http.schema import GradeResult
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.slots.slot_factory import SlotConfig
from rstar2.sandbox.unsafe.executor import UnsafeExecutor


def new_executor() -> Executor:
    """The isolated executor where there is one, else the unsafe one: the service must not care."""
    return cold() if sys.platform == "linux" else UnsafeExecutor()


def cold(**settings: Any) -> LocalExecutor:
    """For tests whose programs need no libraries, or import them themselves: loading them takes two seconds."""
    return LocalExecutor(LocalConfig(slots=SlotConfig(warm=False), **settings))


@dataclass
class GateExecutor:
    """Executions that end when the test says so, and a count of what happened to them."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    max_running: int = 1_000_000
    num_started: int = 0
    num_running: int = 0
    num_cancelled: int = 0

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:
        if self.num_running >= self.max_running:
            raise Overloaded(retry_after_s=0.05)
        self.num_started += 1
        self.num_running += 1
        try:
            if request.code != "pass":
                await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
        if on_output is not None:
            on_output("stdout", request.code)
        return Execution(ExecutionStatus.OK, stdout=request.code, exit_code=0)

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        for index, request in enumerate(requests):
            yield index, await self.run(request)

    async def session(self) -> Session:
        return GateSession(self)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@dataclass
class GateSession:
    """A notebook whose cells are executions of the gate."""

    executor: GateExecutor
    id: str = "the-session"
    num_cells: int = 0

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        execution = await self.executor.run(Request(code, stdin, limits or Limits(), rich=rich), on_output)
        self.num_cells += 1
        return execution

    async def put_file(self, path: str, data: bytes) -> None:  # noqa: ARG002
        self.num_cells += 1

    async def read_file(self, path: str) -> bytes:
        return path.encode()

    async def list_files(self) -> list[FileInfo]:
        return []

    async def fork(self) -> Session:
        return GateSession(self.executor, f"{self.id}+", self.num_cells)

    async def rollback(self, num_cells: int = 1) -> None:
        self.num_cells -= num_cells

    async def close(self) -> None:
        pass


class EqualityGrader:
    async def grade_answer(self, answer: str, gold: str) -> GradeResult:
        if answer == "break":
            raise ZeroDivisionError
        if answer == "away":
            raise InfrastructureError("no worker")
        return GradeResult(Verdict.RIGHT if answer == gold else Verdict.WRONG, answer, "text", "")

    async def grade(self, *turns: str, gold: str) -> GradeResult:
        return await self.grade_answer(turns[-1].rpartition(" ")[2], gold)


@dataclass(frozen=True)
class Running:
    url: str
    port: int
    server: Server
    service: Service


def listening_socket() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@asynccontextmanager
async def service(
    executor: Executor | None = None, settings: ServiceSettings | None = None, **wiring: Any
) -> AsyncIterator[Running]:
    async with executor or new_executor() as running:
        app = create_app(running, settings, **wiring)
        server, sock = Server(app), listening_socket()
        await server.start([sock])
        port = sock.getsockname()[1]
        try:
            yield Running(f"http://127.0.0.1:{port}", port, server, app[SERVICE])
        finally:
            await server.drain(0.0)


@contextmanager
def service_on_thread(
    settings: ServiceSettings | None = None, make_executor: Callable[[], Executor] = new_executor, **wiring: Any
) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def call(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(60)

    async def make() -> Any:
        return service(make_executor(), settings, **wiring)

    context = call(make())
    try:
        yield call(context.__aenter__())
        call(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def until(condition: Any, timeout_s: float = 60.0) -> None:
    """Wait for something that another task is about to make true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
