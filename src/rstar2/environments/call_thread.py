"""A thread for a user's functions, which are called one after the other.

It is a daemon thread: a hung function delays neither other threads nor the exit of the process. An object uses one
thread for all of its methods, since some libraries, such as sqlite3, refuse to be used from another thread.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rstar2.environments.code_places import describe, place_of_thread

_Job = Callable[[], None]


class CallThread:
    def __init__(self) -> None:
        self._jobs = queue.SimpleQueue[_Job | None]()
        self._thread: threading.Thread | None = None
        self.is_busy = False
        """Whether the thread is running a function."""

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread. If the wait is cancelled, the function runs on."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def job() -> None:
            result, failed = None, None
            self.is_busy = True
            try:
                result = context.run(function)
            except BaseException as error:
                failed = error
            self.is_busy = False
            if isinstance(failed, (StopIteration, asyncio.CancelledError)):  # a future cannot hold these
                failed = RuntimeError(describe(failed)).with_traceback(failed.__traceback__)
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, failed)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run_jobs, name="environment", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return await done

    @property
    def place(self) -> str:
        """`FILE, line N: ` of the running function; empty if there is none."""
        ident = self._thread.ident if self._thread is not None else None
        return place_of_thread(ident) if self.is_busy and ident is not None else ""

    def stop(self) -> None:
        """End the thread after its current function."""
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
