"""Tells where a user's code failed or hangs, as `FILE, line N`, and what it raised, in words that fit into a
sentence."""

import asyncio
import inspect
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

MAX_MESSAGE_CHARS = 500
"""An exception may carry a whole document in its message."""

_OWN = str(Path(__file__).parents[1])
_LIBRARY = str(Path(asyncio.__file__).parents[1])
_INSTALLED = ("site-packages", "dist-packages")


def place_of(error: BaseException) -> str:
    """`FILE, line N: ` of the innermost line of the user's code; empty if there is none."""
    return _innermost((frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__))


def place_of_thread(ident: int) -> str:
    """`FILE, line N: ` of a thread's current line."""
    frame = sys._current_frames().get(ident)
    return _innermost((found.filename, found.lineno or 0) for found in traceback.extract_stack(frame)) if frame else ""


def place_of_coroutine(coroutine: Coroutine[Any, Any, Any]) -> str:
    """`FILE, line N: ` of the line at which a coroutine, or what it awaits, is suspended."""
    lines = list[tuple[str, int]]()
    awaited: Any = coroutine
    while isinstance(frame := getattr(awaited, "cr_frame", None), FrameType):
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        awaited = awaited.cr_await
    return _innermost(lines)


def place_of_function(function: Callable[..., Any]) -> str:
    """`FILE, line N: ` of a definition; empty for a function that is not written in Python."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}: " if code is not None else ""


def place_of_class(cls: type) -> str:
    """`FILE, line N: ` of a definition; empty if its source is unknown."""
    try:
        return f"{inspect.getsourcefile(cls)}, line {inspect.getsourcelines(cls)[1]}: "
    except (OSError, TypeError):
        return ""


def describe(error: BaseException) -> str:
    """`ValueError: its message`, cut to a readable length."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def message_of(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception as failed:
        return f"its message cannot be printed ({type(failed).__name__})"
    is_long = len(message) > MAX_MESSAGE_CHARS
    return f"{message[:MAX_MESSAGE_CHARS]}… ({len(message)} characters)" if is_long else message


def _innermost(lines: Iterable[tuple[str, int]]) -> str:
    """The innermost line outside rstar2 and Python itself. A line of an installed package counts only if there is no
    other: users look for their own line."""
    found = [
        line
        for line in lines
        if not line[0].startswith((_OWN, "<")) and (not line[0].startswith(_LIBRARY) or _is_installed(line))
    ]
    own = [line for line in found if not _is_installed(line)]
    return "{}, line {}: ".format(*(own or found)[-1]) if found else ""


def _is_installed(line: tuple[str, int]) -> bool:
    return any(name in line[0] for name in _INSTALLED)
