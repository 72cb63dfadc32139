"""The tools that a client sees."""

from base64 import b64decode
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from rstar2.sandbox.execution import Limits
from rstar2.sandbox.executor import Executor, Request, Session
from rstar2.sandbox.http.schema import MAX_CODE_CHARS, MAX_STDIN_CHARS
from rstar2.sandbox.mcp.notebooks import Notebooks, answered
from rstar2.sandbox.mcp.results import (
    FileContents,
    ProgramResult,
    SessionFiles,
    SessionState,
    file_list,
    file_result,
    program_result,
    session_result,
)

GRACE_S = 30.0
"""The time that a call may take beyond its program's own limits."""
INSTRUCTIONS = """Runs Python in an isolated sandbox without network. numpy, scipy, sympy, mpmath, networkx and \
pandas are there, and matplotlib where it is installed: figures come back as images. `run_python` keeps nothing \
for the next call. `run_cell` is a notebook: call it without `session` to open one, then pass the session it returns \
to keep variables and files."""


@dataclass(frozen=True, slots=True)
class McpLimits:
    """The limits that apply to clients."""

    max_sessions: int = 64
    session_idle_s: float = 3600.0
    max_wall_s: float = 300.0
    """The maximum time limit that a call may request."""
    memory_bytes: int = Limits().memory_bytes
    max_output_chars: int = 100_000
    """The limit of stdout, of stderr and of the value. The middle of a longer text is left out."""
    queue_s: float = 120.0


Code = Annotated[str, Field(max_length=MAX_CODE_CHARS, description="The Python source.")]
Stdin = Annotated[str, Field(max_length=MAX_STDIN_CHARS, description="What the program reads as standard input.")]
TimeoutS = Annotated[float | None, Field(gt=0, description="Its time limit in seconds, at most 10 if left out.")]
SessionId = Annotated[str, Field(max_length=128, description="The session that `run_cell` returned.")]
OwnOrNewSession = Annotated[
    str | None, Field(max_length=128, description="The session that an earlier call returned. Left out: a new one.")
]
NumCells = Annotated[int, Field(ge=1, le=1_000_000, description="How many of the last cells to forget.")]
FilePath = Annotated[str, Field(max_length=4096, description="Relative to the notebook's working directory.")]
FileText = Annotated[str | None, Field(description="The file's contents, if they are text.")]
FileBase64 = Annotated[str | None, Field(description="The file's contents in base64, if they are not text.")]
FileAnswer = Annotated[CallToolResult, FileContents]
FilesAnswer = Annotated[CallToolResult, SessionFiles]
ProgramAnswer = Annotated[CallToolResult, ProgramResult]
SessionAnswer = Annotated[CallToolResult, SessionState]


class SandboxTools:
    """Each public method is a tool: its docstring and its parameters are what a client's model reads."""

    def __init__(self, executor: Executor, notebooks: Notebooks, limits: McpLimits) -> None:
        self._executor = executor
        self._notebooks = notebooks
        self._limits = limits

    async def run_python(self, code: Code, stdin: Stdin = "", timeout_s: TimeoutS = None) -> ProgramAnswer:
        """Run a Python program in the sandbox and return what it printed and the value of its last expression. Nothing
        is kept for the next call."""
        limits = self._program_limits(timeout_s)
        async with answered(self._limits.queue_s + limits.longest_s + GRACE_S):
            request = Request(code, stdin, limits, self._limits.queue_s, rich=True)
            return program_result(await self._executor.run(request), self._limits.max_output_chars)

    async def run_cell(
        self, code: Code, session: OwnOrNewSession = None, stdin: Stdin = "", timeout_s: TimeoutS = None
    ) -> ProgramAnswer:
        """Run a cell of a notebook: it sees the variables and files that earlier cells of the session left. A cell that
        raises keeps what it did before; one that crashes or is stopped at a limit leaves the state as it was."""
        limits = self._program_limits(timeout_s)
        async with answered(self._limits.queue_s + limits.longest_s + GRACE_S), self._notebooks.turn(session) as held:
            execution = await held.run(code, stdin, limits, rich=True)
            return program_result(execution, self._limits.max_output_chars, held.id, held.num_cells)

    async def fork_session(self, session: SessionId) -> SessionAnswer:
        """Open a second notebook that starts from this one's current state. The two share nothing from here on."""
        async with self._answered():
            forked = await self._notebooks.fork(session)
            return session_result(_state(forked), f"[session {forked.id}, {forked.num_cells} cells]")

    async def rollback_session(self, session: SessionId, num_cells: NumCells = 1) -> SessionAnswer:
        """Forget the last cells of a notebook: variables and files are as they were before them."""
        async with self._answered(), self._notebooks.turn(session) as held:
            await held.rollback(num_cells)
            return session_result(_state(held), f"[session {held.id}, {held.num_cells} cells]")

    async def close_session(self, session: SessionId) -> str:
        """Close a notebook and free what it holds. Notebooks that are not used for long are closed by themselves."""
        async with self._answered():
            await self._notebooks.close(session)
            return f"[session {session} is closed]"

    async def put_file(
        self,
        path: FilePath,
        session: OwnOrNewSession = None,
        text: FileText = None,
        base64: FileBase64 = None,
    ) -> SessionAnswer:
        """Write a file into a notebook's working directory, from a text or from base64. It counts as a cell."""
        if (text is None) == (base64 is None):
            raise ToolError("give either text or base64, and not both")
        data = text.encode() if text is not None else _decode_base64(base64 or "")
        async with self._answered(), self._notebooks.turn(session) as held:
            await held.put_file(path, data)
            said = f"[{path}: {len(data)} bytes written; session {held.id}, {held.num_cells} cells]"
            return session_result(_state(held), said)

    async def read_file(self, path: FilePath, session: SessionId) -> FileAnswer:
        """Read a file of a notebook's working directory."""
        async with self._answered(), self._notebooks.turn(session) as held:
            return file_result(path, await held.read_file(path), self._limits.max_output_chars)

    async def list_files(self, session: SessionId) -> FilesAnswer:
        """List the files of a notebook's working directory."""
        async with self._answered(), self._notebooks.turn(session) as held:
            return file_list(await held.list_files())

    def _answered(self) -> AbstractAsyncContextManager[None]:
        """The deadline of calls that may have to wait for a running cell."""
        return answered(self._limits.queue_s + self._limits.max_wall_s + GRACE_S)

    def _program_limits(self, timeout_s: float | None) -> Limits:
        if timeout_s is None:
            timeout_s = min(Limits().wall_s, self._limits.max_wall_s)
        elif timeout_s > self._limits.max_wall_s:
            raise ToolError(f"timeout_s: at most {self._limits.max_wall_s:g} seconds are allowed, not {timeout_s:g}")
        return Limits(wall_s=timeout_s, cpu_s=timeout_s, memory_bytes=self._limits.memory_bytes)


def create_server(executor: Executor, limits: McpLimits | None = None) -> MCPServer[None]:
    """The caller owns the executor: it opens it before and closes it after the server."""
    limits = limits or McpLimits()
    notebooks = Notebooks(executor, limits.max_sessions, limits.session_idle_s)
    server: MCPServer[None] = MCPServer(
        "rstar2-sandbox",
        title="Python sandbox",
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        lifespan=lambda _: notebooks.swept(),
        subscriptions=False,
    )
    tools = SandboxTools(executor, notebooks, limits)
    for tool, is_read_only in (
        (tools.run_python, True),
        (tools.run_cell, False),
        (tools.fork_session, False),
        (tools.rollback_session, False),
        (tools.close_session, False),
        (tools.put_file, False),
        (tools.read_file, True),
        (tools.list_files, True),
    ):
        # A program has no effects outside the sandbox.
        annotations = ToolAnnotations(read_only_hint=is_read_only, destructive_hint=False, open_world_hint=False)
        server.add_tool(tool, annotations=annotations)
    return server


def _decode_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise ToolError(f"base64: it cannot be decoded: {error}") from None


def _state(session: Session) -> SessionState:
    return SessionState(session=session.id, num_cells=session.num_cells)
