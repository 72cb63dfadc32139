"""The two Python tools: a fresh program with its stdin at each call, and a notebook that keeps its variables.

The model reads stdout; with no stdout, the value of the last expression; and for a program that failed, what it printed
before, then its traceback or the limit that it ran into.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rstar2.agent.tool import ToolSchema
from rstar2.records import ToolResult, ToolStatus
from rstar2.sandbox.execution import Execution, Limits
from rstar2.sandbox.executor import Executor, Request, Session

if TYPE_CHECKING:
    from rstar2.config import Recipe

NO_OUTPUT_TEXT = "[The program ended without printing anything.]"

_LIMIT_NOTES = {
    ToolStatus.TIMED_OUT: "Timed out",
    ToolStatus.OUT_OF_MEMORY: "Out of memory",
    ToolStatus.OUTPUT_TOO_LONG: "Too much output",
    ToolStatus.RAISED: "Crashed",
}


def result_of(execution: Execution) -> ToolResult:
    """The tool result of one execution, as the model reads it. Pure."""
    return ToolResult(execution.tool_status, _text_of(execution), wall_s=execution.wall_s, cpu_s=execution.cpu_s)


def _text_of(execution: Execution) -> str:
    if execution.tool_status is ToolStatus.NO_OUTPUT:
        return NO_OUTPUT_TEXT
    if execution.ok:
        return (execution.stdout or execution.value or "").removesuffix("\n")
    if execution.status.is_sandbox_fault:
        return execution.message
    parts = [execution.stdout.removesuffix("\n"), execution.stderr.removesuffix("\n")]
    if execution.message:
        parts.append(f"[{_LIMIT_NOTES[execution.tool_status]}: {execution.message}.]")
    elif not execution.stderr:
        parts.append(f"[The program exited with code {execution.exit_code}.]")
    return "\n".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class PythonTool:
    """Satisfies `Tool`: each call is a separate program."""

    executor: Executor
    limits: Limits = field(default_factory=Limits)
    queue_s: float = 120.0

    schema: ClassVar[ToolSchema] = ToolSchema(
        name="execute_python_code_with_standard_io",
        description="Execute Python code with standard input and capture standard output. This function takes a Python "
        "code string and an input string, provides the input string through standard input (stdin) to the code, and "
        "captures and returns any output produced through standard output (stdout). If the executed code raises an "
        "exception, the error message will be captured and returned instead.",
        parameters={
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "description": "A string containing Python code to be executed. The code can read from standard "
                    "input using the input() function.",
                },
                "input": {
                    "type": "string",
                    "description": "A string that will be provided as standard input to the code when it calls "
                    "input().",
                },
            },
            "required": ["code", "input"],
        },
    )

    @classmethod
    def of(cls, recipe: "Recipe", executor: Executor) -> Self:
        return cls(executor, _limits(recipe), recipe.sandbox.queue_s)

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        request = Request(arguments["code"], arguments["input"], self.limits, self.queue_s)
        return result_of(await self.executor.run(request))

    async def fork(self) -> Self:
        return self  # its programs share nothing

    async def close(self) -> None:
        pass


class JupyterTool:
    """Satisfies `Tool`: the calls of a rollout are the cells of one notebook, opened at the first of them."""

    schema: ClassVar[ToolSchema] = ToolSchema(
        name="jupyter_code",
        description="Run code in a Jupyter notebook and return what it prints, or the value of its last expression. "
        "Variables, functions and imports stay defined for later calls.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The Python code of one cell."}},
            "required": ["code"],
        },
    )

    def __init__(self, executor: Executor, limits: Limits | None = None) -> None:
        self._executor = executor
        self._limits = limits or Limits()
        self._session: Session | None = None
        self._turn = asyncio.Lock()

    @classmethod
    def of(cls, recipe: "Recipe", executor: Executor) -> Self:
        return cls(executor, _limits(recipe))

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        # The calls of one turn come at the same time; as cells they run in the order in which they were written.
        async with self._turn:
            if self._session is None:
                self._session = await self._executor.session()
            return result_of(await self._session.run(arguments["code"], limits=self._limits))

    async def fork(self) -> "JupyterTool":
        """A notebook that starts from the present state of this one."""
        async with self._turn:
            forked = JupyterTool(self._executor, self._limits)
            if self._session is not None:
                forked._session = await self._session.fork()
            return forked

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _limits(recipe: "Recipe") -> Limits:
    return Limits(**recipe.sandbox.limits.model_dump())
