"""The sandbox with blocking calls, for code without an event loop.

    with Sandbox() as sandbox:
        print(sandbox.run("print(1 + 1)").stdout)

An executor runs on its own thread until `close`; calls may come from any thread.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from rstar2.sandbox.execution import Execution, FileInfo, Limits, OnOutput
from rstar2.sandbox.executor import Executor, Request, Session
from rstar2.sandbox.local import LocalExecutor

T = TypeVar("T")


class Sandbox:
    """Without `address`, programs run in isolated children of this process. `address` is a service's URL, with its
    token; that of a service of this user on this machine is found. An unreachable service is an error at once.
    `executor` makes any other executor: `Sandbox(executor=UnsafeExecutor)` where isolation is not possible."""

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        executor: Callable[[], Executor] | None = None,
    ) -> None:
        self._make_executor = executor
        self._address, self._token = address, token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rstar2-sandbox", daemon=True)
        self._thread.start()
        try:
            self._executor = self._call(self._open_executor())
        except BaseException:
            self._stop()
            raise

    def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        files: Mapping[str, bytes] | None = None,
        fetch_files: Iterable[str] = (),
        on_output: OnOutput | None = None,
    ) -> Execution:
        """`on_output` is called on the sandbox's own thread."""
        request = Request(code, stdin, limits or Limits(), rich=rich, files=files or {}, fetch_files=tuple(fetch_files))
        return self._call(self._executor.run(request, on_output))

    def run_many(self, requests: Iterable[Request | str]) -> Iterator[tuple[int, Execution]]:
        """Run all requests concurrently; yields (index, result) pairs in the order in which they finish."""
        wanted = [Request(item) if isinstance(item, str) else item for item in requests]
        results: queue.SimpleQueue[tuple[int, Execution] | None] = queue.SimpleQueue()

        async def drain() -> None:
            try:
                async for result in self._executor.run_many(wanted):
                    results.put(result)
            finally:
                results.put(None)

        draining = asyncio.run_coroutine_threadsafe(drain(), self._loop)
        try:
            while (result := results.get()) is not None:
                yield result
            draining.result()
        finally:
            draining.cancel()

    def session(self) -> "SyncSession":
        return SyncSession(self._call, self._call(self._executor.session()))

    def close(self) -> None:
        if self._thread.is_alive():
            self._call(self._executor.close())
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _open_executor(self) -> Executor:
        if self._make_executor is not None:
            return await self._make_executor().__aenter__()
        if self._address is not None:
            return await _connect(self._address, self._token)
        return await LocalExecutor().__aenter__()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncSession:
    """A notebook with blocking calls: see `rstar2.sandbox.executor.Session`."""

    def __init__(self, call: Callable[[Coroutine[Any, Any, Any]], Any], session: Session) -> None:
        self._call = call
        self._session = session

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def num_cells(self) -> int:
        return self._session.num_cells

    def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        """`on_output` is called on the sandbox's own thread."""
        execution: Execution = self._call(self._session.run(code, stdin, limits, rich=rich, on_output=on_output))
        return execution

    def put_file(self, path: str, data: bytes) -> None:
        self._call(self._session.put_file(path, data))

    def read_file(self, path: str) -> bytes:
        data: bytes = self._call(self._session.read_file(path))
        return data

    def list_files(self) -> list[FileInfo]:
        files: list[FileInfo] = self._call(self._session.list_files())
        return files

    def fork(self) -> "SyncSession":
        return SyncSession(self._call, self._call(self._session.fork()))

    def rollback(self, num_cells: int = 1) -> None:
        self._call(self._session.rollback(num_cells))

    def close(self) -> None:
        self._call(self._session.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _connect(address: str, token: str | None) -> Executor:
    from rstar2.sandbox.client import RemoteExecutor

    executor = RemoteExecutor(address, token)
    try:
        await executor.reach()
    except BaseException:
        await executor.close()
        raise
    return executor
