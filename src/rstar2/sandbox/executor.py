"""The interface of everything that runs code: in this process, over HTTP or on a cluster."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import Execution, FileInfo, Limits, OnOutput


class Overloaded(InfrastructureError):  # noqa: N818
    """The queue is full: nothing was started, and the caller may retry after `retry_after_s`."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"over capacity: try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Request:
    """One stateless execution to be done."""

    code: str
    stdin: str = ""
    limits: Limits = field(default_factory=Limits)
    queue_s: float = 120.0
    """How long it may wait for a worker before it ends as a queue timeout."""
    flow: str = ""
    """Requests of one flow are served in order, and flows take turns. Empty: the request is its own flow."""
    rich: bool = False
    """Whether to return what a notebook would show: see `Execution.displays`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to put into the program's working directory before it starts, by their relative paths."""
    fetch_files: tuple[str, ...] = ()
    """Files to read when it has ended."""


class Session(Protocol):
    """A notebook: cells run one after another, each on the state that the last one left."""

    @property
    def id(self) -> str: ...

    @property
    def num_cells(self) -> int:
        """Cells whose effects are in the current state; a file that was put counts as one."""
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
        """Run one cell. One that raises keeps what it did before, as in a notebook; one that crashes, or is stopped
        at a limit, leaves the state as it was before it."""
        ...

    async def put_file(self, path: str, data: bytes) -> None:
        """Put a file into the working directory, by its relative path; one that exists is replaced. UserError where
        that cannot be."""
        ...

    async def read_file(self, path: str) -> bytes:
        """UserError if there is no such file, or it is too large."""
        ...

    async def list_files(self) -> list[FileInfo]:
        """All regular files below the working directory."""
        ...

    async def fork(self) -> "Session":
        """A second session that starts from this one's current state; the two share nothing from here on."""
        ...

    async def rollback(self, num_cells: int = 1) -> None:
        """Forget the last `num_cells` cells. ValueError if there are not that many."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    """Runs untrusted Python. Never raises for what the program does: that is in the returned status."""

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution: ...

    def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        """All of them at once; (index, result) pairs in the order in which they finish."""
        ...

    async def session(self) -> Session: ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
