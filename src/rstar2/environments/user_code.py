"""Calls code that rstar2 did not write: a user's environment, tool or reward.

Invariant: every call has a deadline. An exception or an invalid return value becomes an `EnvironmentCodeError` that
names the file and the line, or a `UserError` if the recipe says that a failure stops the run.
"""

import asyncio
import contextvars
import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rstar2.environments.call_thread import CallThread
from rstar2.environments.code_places import describe, place_of, place_of_coroutine, place_of_thread
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

FILE_PREFIX = "file:"
CANCEL_S = 1.0
"""Seconds that a cancelled coroutine gets to end. One that goes on is left alone."""


def load_object(spec: str, what: str) -> Any:
    """Load the object that `file:PATH.py:NAME` or `package.module:NAME` names. PATH is relative to the working
    directory. UserError begins with `what`, usually a field of the recipe, and names the line that failed."""
    where, _, name = spec.removeprefix(FILE_PREFIX).rpartition(":")
    if not where or not name:
        raise UserError(f"{what}: {spec!r} must be file:PATH.py:NAME or package.module:NAME")
    is_file = spec.startswith(FILE_PREFIX)
    if is_file and not Path(where).is_file():
        raise UserError(f"{what}: there is no file {Path(where).absolute()}")
    with mistakes_named(what):
        module = _module_of_file(Path(where).resolve()) if is_file else importlib.import_module(where)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{what}: {where} defines no {name}{hint}")
    return getattr(module, name)


def absolute_spec(spec: str) -> str:
    """The spec, valid in any working directory."""
    path, _, name = spec.removeprefix(FILE_PREFIX).rpartition(":")
    return f"{FILE_PREFIX}{Path(path).absolute()}:{name}" if spec.startswith(FILE_PREFIX) else spec


@functools.cache
def _module_of_file(path: Path) -> Any:
    """The module of a file, which runs once per process. It may import its neighbours, as a script may; its folder
    comes last in the search path, so that a neighbour never replaces a module that others import."""
    name = f"rstar2_file_{path.stem}_{zlib.crc32(str(path).encode()):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: its name must end in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def mistakes_named(what: str) -> Iterator[None]:
    """Turn every error of the block into a UserError that begins with `what` and names the line."""
    try:
        yield
    except SyntaxError as error:
        raise UserError(f"{what}: {error.filename}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        hint = f"; install {error.name}, or name the folder that holds it in PYTHONPATH" if error.name else ""
        raise UserError(f"{what}: {place_of(error)}{error}{hint}") from error
    except UserError as error:
        raise UserError(f"{what}: {place_of(error)}{error}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {place_of(error)}{describe(error)}") from error


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls a user's code by the recipe's deadline and policy."""

    deadline_s: float
    stops: bool
    """Whether a failure stops the run."""
    thread: CallThread | None = None
    """The thread for functions that are not async. If None, each call has its own thread."""

    @classmethod
    def of(cls, section: "EnvironmentSection") -> Self:
        return cls(section.deadline_s, section.on_error == "stop")

    async def call(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, and await it if it is async. Other functions run in a thread, so that a slow one delays
        nothing else. `what` names the call in errors."""
        try:
            return await self.attempt(what, function, *args, **kwargs)
        except (UserError, InfrastructureError):
            raise
        except Exception as error:
            raise self.fault_of(what, error) from error

    async def attempt(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Like `call`, but the code's own exceptions pass unchanged, for the caller to classify."""
        bound = functools.partial(function, *args, **kwargs)
        thread = None if inspect.iscoroutinefunction(function) else self.thread or CallThread()
        work = _result(bound, thread)
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.deadline_s)
            if not done:
                place = (thread.place if thread is not None else "") or place_of_coroutine(work)
                raise self.fault(f"{what}: {place}no answer within {self.deadline_s:g} s")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=CANCEL_S)
            if thread is not None and thread is not self.thread:
                thread.stop()
        if task.cancelled():
            raise self.fault(f"{what}: it cancelled itself (asyncio.CancelledError)")
        return task.result()

    def call_in_time(self, what: str, function: Callable[..., Any], /, *args: Any) -> Any:
        """Call a quick function, such as one that writes a prompt, in a thread that is left alone at the deadline. This
        blocks the caller."""
        found: list[Callable[[], Any]] = []

        def run() -> None:
            try:
                result = self.call_now(what, function, *args)
                found.append(lambda: result)
            except BaseException as error:
                failed = error
                found.append(lambda: _raise(failed))

        thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="environment", daemon=True)
        thread.start()
        thread.join(self.deadline_s)
        if not found:
            place = place_of_thread(thread.ident) if thread.ident is not None else ""
            raise self.fault(f"{what}: {place}no answer within {self.deadline_s:g} s")
        return found[0]()

    def call_now(self, what: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, without a deadline."""
        try:
            return function(*args, **kwargs)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise self.fault_of(what, error) from error

    def fault_of(self, what: str, error: BaseException) -> UserError | EnvironmentCodeError:
        return self.fault(f"{what}: {place_of(error)}{describe(error)}")

    def fault(self, sentence: str) -> UserError | EnvironmentCodeError:
        """The error for a failure, for the caller to raise."""
        return UserError(sentence) if self.stops else EnvironmentCodeError(sentence)


def _raise(error: BaseException) -> None:
    raise error


async def _result(function: Callable[[], Any], thread: CallThread | None) -> Any:
    """Call a function, here or in a thread, and await its result if it is awaitable."""
    try:
        result = function() if thread is None else await thread.run(function)
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # SystemExit would end the process
        raise RuntimeError(describe(error)).with_traceback(error.__traceback__) from error
