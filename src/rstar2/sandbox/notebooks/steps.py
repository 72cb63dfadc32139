"""The steps of a session: its cells, and the files that were put between them."""

from dataclasses import dataclass

from rstar2.sandbox.execution import Limits


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell that is part of a session, and the state that it left in some tree."""

    code: str
    stdin: str
    limits: Limits
    rich: bool = False
    state: int = 0
    fingerprint: int = 0
    """The fingerprint of the scratch directory at the end of the cell."""


@dataclass(frozen=True, slots=True)
class PutFile:
    """A file that was put into a session; `state` is that of the cell before it."""

    path: str
    data: bytes
    state: int = 0
    fingerprint: int = 0


Step = Cell | PutFile
ROOT = Cell("", "", Limits())


def without_last_cell(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    last = max((index for index, step in enumerate(steps) if isinstance(step, Cell)), default=-1)
    return steps[:last] + steps[last + 1 :] if last >= 0 else steps
