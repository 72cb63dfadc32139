"""The interface of everything that runs code: in this process, over HTTP or on a cluster."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import Execution, FileInfo, Limits, OnOutput


class Overloaded(InfrastructureError):  # noqa: N818
    """The queue is full. Nothing was started; the caller may retry after `retry_after_s`."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"over capacity: try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Request:
    """A stateless execution and its limits."""

    code: str
    stdin: str = ""
    limits: Limits = field(default_factory=Limits)
    queue_s: float = 120.0
    """How long the request may wait for a worker before it ends as a queue timeout."""
    flow: str = ""
    """Requests of one flow are served in order, and flows take turns. Empty: the request is its own flow."""
    rich: bool = False
    """Whether to return rich results: see `Execution.displays`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to put into the program's working directory before it starts, by their relative paths."""
    fetch_files: tuple[str, ...] = ()
    """Paths of files to return at its end."""


class Session(Protocol):
    """A notebook: cells run one after another, each on the state that the last one left."""

    @property
    def id(self) -> str: ...

    @property
    def num_cells(self) -> int:
        """The number of cells whose effects are in the current state; putting a file counts as a cell."""
        ...

    async def run(
        self,
        code: str,
        stdin: str = "",
        limits: Limits | None = None,
        *,
        rich: bool = False,
        on_output: OnOutput | None = None,
    ) -> Execution:
        """Run one cell. A cell that raises keeps the changes it made, as in a notebook; a cell that crashes, or is
        stopped at a limit, leaves the state as it was before the cell."""
        ...

    async def put_file(self, path: str, data: bytes) -> None:
        """Write a file at a path relative to the working directory, replacing an existing one. UserError if that is not
        possible."""
        ...

    async def read_file(self, path: str) -> bytes:
        """Read a file. UserError if it does not exist or is too large."""
        ...

    async def list_files(self) -> list[FileInfo]:
        """List all regular files below the working directory."""
        ...

    async def fork(self) -> "Session":
        """A second session that starts from this one's current state; the two share nothing from here on."""
        ...

    async def rollback(self, num_cells: int = 1) -> None:
        """Undo the last `num_cells` cells. ValueError if there are fewer."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    """Runs untrusted Python. A program's failure never raises here: the returned status holds it."""

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution: ...

    def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        """Run all requests concurrently; yields (index, result) pairs in the order in which they finish."""
        ...

    async def session(self) -> Session: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
