"""From a traceback's text to what a Jupyter kernel reports: the exception's name, its message, and the frames."""

import re
from dataclasses import dataclass

_START = re.compile(r'^(Traceback \(most recent call last\):|  File ")', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NotebookError:
    ename: str
    evalue: str
    traceback: list[str]


def split_traceback(stderr: str) -> tuple[str, NotebookError | None]:
    """What the cell itself wrote to stderr, and the error that ended it; None if there is no traceback."""
    start = _START.search(stderr)
    if start is None:
        return stderr, None
    lines = stderr[start.start() :].splitlines()
    last_frame = max(index for index, line in enumerate(lines) if line.startswith(("Traceback", '  File "')))
    index = next((at for at in range(last_frame + 1, len(lines)) if not lines[at].startswith("  ")), len(lines) - 1)
    name, _, first = lines[index].partition(": ")
    message = "\n".join([first, *lines[index + 1 :]])
    return stderr[: start.start()], NotebookError(name.rpartition(".")[2], message, lines)
