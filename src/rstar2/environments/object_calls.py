"""The calls of one object of a user's class."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rstar2.environments.call_thread import CallThread
from rstar2.environments.user_code import Caller
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError


class ObjectCalls:
    """Calls the methods of one object: one at a time, in the order of the calls, and those that are not async in one
    thread. After a failure no other method is called, since the failed one may still be running."""

    def __init__(self, caller: Caller) -> None:
        self._thread = CallThread()
        self._caller = replace(caller, thread=self._thread)
        self._turn = asyncio.Lock()
        self._failure: str | None = None

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    async def attempt(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        async with self._turn:
            if self._failure is not None:
                raise EnvironmentCodeError(f"{what} was not called after {self._failure}")
            try:
                return await self._caller.attempt(what, function, *args, **kwargs)
            except BaseException as error:
                if isinstance(error, UserError) or not isinstance(error, ValueError):  # ValueError: a tool refused
                    self._failure = f"a failure of {what}"
                raise

    async def call(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self.attempt(what, function, *args, **kwargs)
        except (UserError, InfrastructureError):
            raise
        except Exception as error:
            raise self.fault_of(what, error) from error

    def fault_of(self, what: str, error: BaseException) -> UserError | EnvironmentCodeError:
        return self._caller.fault_of(what, error)

    async def close(self, what: str, close: Callable[[], Any] | None) -> None:
        """Close the object, even after failures; in another thread if a method hangs in the object's own."""
        caller = replace(self._caller, thread=None) if self._thread.is_busy else self._caller
        try:
            if close is not None:
                await caller.call(what, close)
        finally:
            self._thread.stop()


async def make_object(make: Callable[[], Any], name: str, caller: Caller) -> tuple[Any, ObjectCalls]:
    calls = ObjectCalls(caller)
    try:
        return await calls.call(f"{name}()", make), calls
    except BaseException:
        await calls.close("", None)
        raise
