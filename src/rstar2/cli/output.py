"""What all verbs share: how results are printed and what exit codes mean.

0: it worked. 1: it ran, and the answer is no (the program failed, the machine falls short). 2: the user's mistake. 3:
our machinery or the machine failed. 130: interrupted by Ctrl-C; 143: by SIGTERM, where a command can resume later.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import IO, Any

import typer

from rstar2.errors import InfrastructureError, UserError


class ExitCode(IntEnum):
    OK = 0
    NO = 1
    USAGE = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = 130


_WRONG_PATH = frozenset(
    (
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EROFS, errno.EEXIST, errno.ENOTEMPTY),
    )
)
"""System errors that the user can fix by another path or other permissions. All others are the machine's."""


_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def print_json(value: Any) -> None:
    """One JSON document on stdout, and nothing else there."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    # JSON escapes only the control characters of ASCII; terminals obey others, too.
    typer.echo(_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def printable(text: str, stream: IO[str]) -> str:
    """What a program, a model or a server wrote, for a stream. A terminal obeys escape codes (titles, the clipboard,
    what is on the screen), so there they are shown and not sent; a file or a pipe gets the text as it is."""
    if not stream.isatty() or text.isprintable():
        return text
    return "".join(one if one in "\n\t" or one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def say(message: object) -> None:
    """On stdout, for a person or a program."""
    typer.echo(printable(str(message), sys.stdout))


def note(message: str) -> None:
    """For the person watching; stderr, so that stdout stays readable by programs."""
    print(printable(message, sys.stderr), file=sys.stderr, flush=True)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Expected failures become one sentence and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except UserError as error:
        note(f"error: {error}")
        raise SystemExit(ExitCode.USAGE) from None
    except InfrastructureError as error:
        note(f"failed: {error}")
        raise SystemExit(ExitCode.INFRASTRUCTURE) from None
    except OSError as error:
        # Wherever a file is opened, and whatever for: the system's message says what is wrong with it.
        if error.errno is None or error.filename is None:
            raise
        is_users = error.errno in _WRONG_PATH
        note(f"{'error' if is_users else 'failed'}: {os.fsdecode(error.filename)}: {os.strerror(error.errno)}")
        raise SystemExit(ExitCode.USAGE if is_users else ExitCode.INFRASTRUCTURE) from None
    except KeyboardInterrupt:
        note("interrupted")
        raise SystemExit(ExitCode.INTERRUPTED) from None
