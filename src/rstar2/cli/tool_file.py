"""A tool of the user's own, from a Python file whose `make_tool()` returns one.

The file is run once; each conversation gets what a call of `make_tool()` returns. A mistake in the file is a UserError
that names the file, the line, and what to change.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rstar2.agent import Tool, ToolSchema
from rstar2.errors import UserError


def tool_maker(file: Path) -> Callable[[], Tool]:
    """Makes a tool for one conversation. It was called once, and returned a tool."""
    from runpy import run_path

    if not file.is_file():
        raise UserError(f"--tool: there is no file {file}")
    with _mistakes_named(file):
        make_tool = run_path(str(file)).get("make_tool")
    if not callable(make_tool):
        raise UserError(f"--tool: {file} defines no function make_tool()")

    def make() -> Tool:
        with _mistakes_named(file):
            tool = make_tool()
        _require_tool(tool, file)
        return tool  # type: ignore[no-any-return]

    make()
    return make


def _require_tool(tool: Any, file: Path) -> None:
    what = f"--tool: what make_tool() of {file} returns"
    for attribute in ("schema", "call", "close"):
        if not hasattr(tool, attribute):
            raise UserError(f"{what} has no {attribute}, so it is no tool")
    if not isinstance(tool.schema, ToolSchema):
        raise UserError(f"{what} has a schema of type {type(tool.schema).__name__}: make it a rstar2.agent.ToolSchema")
    for name, arguments in (("call", ({},)), ("close", ())):
        method = getattr(tool, name)
        if not inspect.iscoroutinefunction(method):
            raise UserError(f"{what} has a {name} that is not async: write `async def {name}(…)`")
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError as error:
            raise UserError(
                f"{what} cannot be asked to {name} ({error}): a tool has call(arguments), close()"
            ) from None


@contextmanager
def _mistakes_named(file: Path) -> Iterator[None]:
    try:
        yield
    except SyntaxError as error:
        raise UserError(f"--tool: {error.filename or file}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        missing = f": install it beside rstar2, or take out the import of {error.name}" if error.name else ""
        raise UserError(f"--tool: {_place(error, file)}: {error}{missing}") from error
    except UserError as error:
        raise UserError(f"--tool: {_place(error, file)}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"--tool: {_place(error, file)}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, file: Path) -> str:
    """The file, and its line that was running."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)
