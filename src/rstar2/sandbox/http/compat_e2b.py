"""E2B's code interpreter API, `/execute` and `/contexts`, so that the `e2b-code-interpreter` package can use this
service.

A context is a notebook session. Code without a context runs in the default context of the sandbox that E2B's client
names in a header. Output is streamed; results and an error follow when the cell has ended.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from aiohttp import web
from pydantic import Field, JsonValue, TypeAdapter

from rstar2.sandbox.execution import Display, Execution, ExecutionStatus, Limits, OnOutput
from rstar2.sandbox.executor import Session
from rstar2.sandbox.http.compat_sandbox_fusion import split_traceback
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.native import NDJSON
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import MAX_WALL_S, Code, LenientRequest
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.session_table import HeldSession, SessionTable
from rstar2.sandbox.http.streams import CELL_ROOM_S, streamed

SANDBOX_HEADER = "E2b-Sandbox-Id"
LIMITS = Limits(wall_s=MAX_WALL_S, cpu_s=MAX_WALL_S)
"""E2B's client keeps the deadline: it disconnects at its timeout, and that ends the cell."""
MAX_JSON_CHARS = 1 << 20
"""A longer JSON representation is sent as text: parsed here, hostile JSON could take many times its size in memory."""
MAX_NESTING = 100
"""JSON with deeper nesting is sent as text too: Python can read some that it cannot write again."""
_STRING, _BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"'), re.compile(r"[\[\]{}]")
_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
_ERROR_NAMES = {
    ExecutionStatus.TIMEOUT: "TimeoutError",
    ExecutionStatus.MEMORY: "MemoryError",
    ExecutionStatus.OUTPUT_LIMIT: "OutputLimitError",
    ExecutionStatus.ERROR: "SystemExit",
}
_START = """
def _start(cwd):
    import os
    if cwd is not None:
        os.makedirs(cwd, exist_ok=True)
        os.chdir(cwd)
    print(os.getcwd())
_start({cwd!r})
del _start
"""
_SET_VARIABLES = """
def _set_variables(variables):
    import os
    before = {{name: os.environ.get(name) for name in variables}}
    os.environ.update(variables)
    os._before_the_cell = before
_set_variables({variables!r})
del _set_variables
"""
_UNSET_VARIABLES = """
def _unset_variables():
    import os
    for name, value in os.__dict__.pop("_before_the_cell", {}).items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
_unset_variables()
del _unset_variables
"""


class ExecuteRequest(LenientRequest):
    code: Code
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = Field(None, max_length=256)


class CreateContextRequest(LenientRequest):
    language: str | None = None
    cwd: str | None = Field(None, max_length=1024)


@dataclass(frozen=True, slots=True)
class ContextInfo:
    id: str
    language: str
    cwd: str


@dataclass
class _Context:
    info: ContextInfo
    held: HeldSession
    num_executions: int = 0


EXECUTE = TypeAdapter(ExecuteRequest)
CREATE_CONTEXT = TypeAdapter(CreateContextRequest)
CONTEXT = TypeAdapter(ContextInfo)
CONTEXTS = TypeAdapter(list[ContextInfo])
EVENT = TypeAdapter(dict[str, JsonValue])


class E2bApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions
        self._contexts: dict[str, _Context] = {}
        self._defaults: dict[str, str] = {}
        """The id of the default context, by sandbox."""
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while the default context of a sandbox is made, by sandbox."""

    def operations(self) -> list[Operation]:
        post = partial(Operation, "POST", tag="E2B", refusals=(404, 409, 503))
        one, events = "/contexts/{context_id}", (ApiAnswer("Events, one in a line.", EVENT, content_type=NDJSON),)
        context = (ApiAnswer("The context.", CONTEXT),)
        remove = partial(Operation, "DELETE", tag="E2B", refusals=(404,))
        contexts = (ApiAnswer("All contexts.", CONTEXTS),)
        running = (ApiAnswer("It is running.", code=204),)
        return [
            Operation(
                "GET",
                "/health",
                self.health,
                "Whether it runs. Needs no token.",
                running,
                tag="E2B",
                extra={"security": []},
            ),
            post("/execute", self.execute, "Run code in a context.", events, EXECUTE),
            post("/contexts", self.create, "Make a context.", context, CREATE_CONTEXT, body_required=False),
            Operation("GET", "/contexts", self.list, "List the contexts.", contexts, tag="E2B"),
            post(f"{one}/restart", self.restart, "Restart a context: its variables are gone.", context),
            remove(one, self.remove, "Remove a context.", (ApiAnswer("It is removed.", code=204),)),
        ]

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=204)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(self._service, request, EXECUTE)
        _check_language(body.language)
        with self._service.admitted():
            context = await self._context_of(request, body.context_id)

            async def act(on_output: OnOutput) -> bytes:
                async with self._sessions.turn(context.held) as session:
                    context.num_executions += 1
                    number = _event("number_of_executions", execution_count=context.num_executions)
                    if body.env_vars:
                        await session.run(_SET_VARIABLES.format(variables=body.env_vars))
                    execution = await self._service.counted(
                        lambda: session.run(body.code, "", LIMITS, rich=True, on_output=on_output)
                    )
                    if body.env_vars:
                        await session.run(_UNSET_VARIABLES)
                return number + b"".join(events_of(execution))

            def line_of(stream: str, text: str) -> bytes:
                return _event(stream, text=text, timestamp=time.time_ns())

            async with self._service.room_for_stream(LIMITS, is_rich=True, wait_s=CELL_ROOM_S):
                return await streamed(self._service, request, act, line_of, lambda events: events, _failure)

    async def create(self, request: web.Request) -> web.Response:
        body = await read_body(self._service, request, CREATE_CONTEXT, if_empty=b"{}")
        _check_language(body.language)
        with self._service.admitted():
            context = await self._make_context(body.cwd)
        return json_response(CONTEXT.dump_json(context.info))

    async def list(self, _: web.Request) -> web.Response:
        self._forget_closed()
        return json_response(CONTEXTS.dump_json([context.info for context in self._contexts.values()]))

    async def restart(self, request: web.Request) -> web.Response:
        context = self._find_context(request.match_info["context_id"])
        with self._service.admitted():
            renewed = await self._make_context(context.info.cwd)
            del self._contexts[renewed.info.id]
            old, context.held, context.num_executions = context.held, renewed.held, 0
            await self._sessions.close(old)
        return json_response(CONTEXT.dump_json(context.info))

    async def remove(self, request: web.Request) -> web.Response:
        context = self._find_context(request.match_info["context_id"])
        self._contexts.pop(context.info.id, None)
        await self._sessions.close(context.held)
        return web.Response(status=204)

    async def _context_of(self, request: web.Request, context_id: str | None) -> _Context:
        if context_id is not None:
            return self._find_context(context_id)
        sandbox = request.headers.get(SANDBOX_HEADER, "")[:128]
        async with self._opening.setdefault(sandbox, asyncio.Lock()):
            self._forget_closed()
            context = self._contexts.get(self._defaults.get(sandbox, ""))
            if context is None:
                context = await self._make_context(None)
                self._defaults = {name: id_ for name, id_ in self._defaults.items() if id_ in self._contexts}
                self._defaults[sandbox] = context.info.id
        return context

    async def _make_context(self, cwd: str | None) -> _Context:
        with self._sessions.room_for_one():
            session = await self._service.executor.session()
            try:
                folder = await _started(session, cwd)
            except BaseException:
                await session.close()
                raise
            info = ContextInfo(session.id, "python", folder)
            context = self._contexts[info.id] = _Context(info, self._sessions.add(session))
        return context

    def _find_context(self, context_id: str) -> _Context:
        self._forget_closed()
        context = self._contexts.get(context_id)
        if context is None:
            raise ApiError(404, "no_context", "there is no context with this id; it was removed, or it never was")
        return context

    def _forget_closed(self) -> None:
        """Forget the contexts whose sessions were closed as idle."""
        self._contexts = {id_: context for id_, context in self._contexts.items() if context.held.is_open}


async def _started(session: Session, cwd: str | None) -> str:
    """Go to the working directory, and return its path."""
    started = await session.run(_START.format(cwd=cwd))
    if started.status.is_sandbox_fault:
        raise ApiError(503, "infrastructure", started.message, retry_after_s=1.0)
    if not started.ok:
        raise ApiError(409, "invalid", f"cwd: {cwd!r} cannot be used; name a folder below the working directory")
    return started.stdout.removesuffix("\n")


def events_of(execution: Execution) -> list[bytes]:
    """The events that end a cell, as E2B's client expects them."""
    events = [_result(display) for display in execution.displays]
    if execution.value is not None and not any(display.is_result for display in execution.displays):
        events.append(_event("result", text=execution.value, is_main_result=True))
    if not execution.ok and (error := _error_of(execution)) is not None:
        events.append(_event("error", **error))
    return events


def _error_of(execution: Execution) -> dict[str, JsonValue] | None:
    if execution.error is not None:
        error = execution.error
        return {"name": error.name, "value": error.value, "traceback": error.traceback}
    _, raised = split_traceback(execution.stderr)
    if execution.status is ExecutionStatus.ERROR and raised is not None:
        return {"name": raised.ename, "value": raised.evalue, "traceback": "\n".join(raised.traceback)}
    name = "SandboxError" if execution.status.is_sandbox_fault else _ERROR_NAMES.get(execution.status, "ProcessEnded")
    value = execution.message or (str(execution.exit_code) if execution.exit_code is not None else "")
    return {"name": name, "value": value, "traceback": value}


def _result(display: Display) -> bytes:
    fields: dict[str, JsonValue] = {"is_main_result": display.is_result}
    extra: dict[str, JsonValue] = {}
    for mime, text in display.data.items():
        name = _FIELDS.get(mime)
        if name is None:
            extra[mime] = text
        elif name == "json" and len(text) <= MAX_JSON_CHARS:
            fields[name] = _json_value(text)
        else:
            fields[name] = text
    if extra:
        fields["extra"] = extra
    return _event("result", **fields)


def _json_value(text: str) -> JsonValue:
    """The parsed JSON of a program, or the text itself if it is invalid or nested too deeply."""
    try:
        value: JsonValue = json.loads(text) if _nesting(text) <= MAX_NESTING else text
    except ValueError:
        return text
    return value


def _nesting(text: str) -> int:
    depth = deepest = 0
    for sign in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _event(kind: str, **fields: JsonValue) -> bytes:
    """An event as ASCII, because E2B's client splits lines at Unicode's line separators too."""
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def _failure(error: ApiError) -> bytes:
    message = error.body.message
    return _event("error", name="SandboxError", value=message, traceback=message)


def _check_language(language: str | None) -> None:
    if language not in (None, "python"):
        raise ApiError(409, "invalid", f"language: only python is run here, not {language!r}")
