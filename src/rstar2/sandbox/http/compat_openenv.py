"""OpenEnv's API: the sandbox as a coding environment below `/openenv`, with the fields of OpenEnv's own `coding_env`.

Each WebSocket is an episode in its own notebook; at most as many are open as the service has sessions. A reset opens a
new notebook, a step runs one cell. The environment has no task, hence no reward: the trainer supplies it.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from aiohttp import WSMsgType, web
from pydantic import Field, TypeAdapter, ValidationError

from rstar2.errors import InfrastructureError
from rstar2.sandbox.execution import Execution, Limits
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response
from rstar2.sandbox.http.schema import MAX_WALL_S, CellRequest, Code, LenientRequest, LimitsModel, Seconds
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.session_table import HeldSession, SessionTable

WS_PATH = "/openenv/ws"
HEARTBEAT_S = 30.0
"""A client that vanished is noticed within this time, and its notebook is closed."""


class CodeAction(LenientRequest):
    """A cell to run."""

    code: Code
    timeout_s: Annotated[Seconds, Field(le=MAX_WALL_S, description="Its time limit.")] = Limits().wall_s


class CodeObservation(LenientRequest):
    """The cell's result."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    value: str | None = Field(None, description="The last expression, as a notebook shows it.")
    status: str = Field("ok", description="ok, error, timeout, memory, output_limit or signal")


class CodeState(LenientRequest):
    episode_id: str | None = None
    step_count: int = 0
    last_exit_code: int = 0


class ResetArguments(LenientRequest):
    """Other arguments are ignored, the seed too: a notebook begins empty."""

    episode_id: Annotated[str, Field(max_length=256)] | None = None


_DOCUMENT = TypeAdapter(dict[str, Any])


class OpenEnvApi:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions

    def operations(self) -> list[Operation]:
        """The operations for OpenAPI; `play` serves the WebSocket at `WS_PATH`."""
        described = (ApiAnswer("JSON schemas of action, observation and state.", _DOCUMENT),)
        healthy = (ApiAnswer("It is up.", _DOCUMENT),)
        what = "What an episode takes and gives."
        return [
            Operation("GET", "/openenv/schema", self.schema, what, described, tag="openenv"),
            Operation("GET", "/openenv/health", self.health, "Whether it is up.", healthy, tag="openenv"),
        ]

    async def schema(self, _: web.Request) -> web.Response:
        models: dict[str, type[LenientRequest]] = {
            "action": CodeAction,
            "observation": CodeObservation,
            "state": CodeState,
        }
        return json_response(_DOCUMENT.dump_json({name: model.model_json_schema() for name, model in models.items()}))

    async def health(self, _: web.Request) -> web.Response:
        return json_response(b'{"status":"healthy"}')

    async def play(self, request: web.Request) -> web.WebSocketResponse:
        max_result_bytes = self._service.settings.max_request_bytes
        socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, max_msg_size=max_result_bytes)
        await socket.prepare(request)
        episode = _Episode(self._service, self._sessions)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                answer = await _answer(episode, message.data)
                if answer is None:
                    break
                async with asyncio.timeout(self._service.settings.transfer_timeout_s):
                    await socket.send_json(answer)
        except (ConnectionError, TimeoutError):
            pass  # The client is gone, or does not read.
        finally:
            await episode.close()
            with contextlib.suppress(Exception):
                await socket.close()
        return socket


class _Episode:
    def __init__(self, service: Service, sessions: SessionTable) -> None:
        self._service = service
        self._sessions = sessions
        self._held: HeldSession | None = None
        self.state = CodeState()

    async def reset(self, arguments: ResetArguments) -> CodeObservation:
        await self.close()
        await self._open()
        self.state = CodeState(episode_id=arguments.episode_id or uuid.uuid4().hex)
        return CodeObservation()

    async def step(self, action: CodeAction) -> CodeObservation:
        held = self._held or await self._open()
        limits = LimitsModel(wall_s=action.timeout_s, cpu_s=action.timeout_s)
        with self._service.admitted():
            async with self._sessions.turn(held) as session:
                execution = await self._service.run_cell(session, CellRequest(code=action.code, limits=limits))
        if execution.status.is_sandbox_fault:
            raise InfrastructureError(execution.message or execution.status.value)
        observation = _observation(execution)
        self.state = CodeState(
            episode_id=self.state.episode_id,
            step_count=self.state.step_count + 1,
            last_exit_code=observation.exit_code,
        )
        return observation

    async def _open(self) -> HeldSession:
        with self._sessions.room_for_one():
            self._held = self._sessions.add(await self._service.executor.session())
        return self._held

    async def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            await self._sessions.close(held)


async def _answer(episode: _Episode, text: str) -> Mapping[str, Any] | None:
    """Answer one message of the client; None ends the episode."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _error("INVALID_JSON", f"Invalid JSON: {error}")
    if not isinstance(message, dict):
        return _error("VALIDATION_ERROR", "a message is an object with `type` and `data`")
    data = message.get("data") or {}
    try:
        match message.get("type"):
            case "reset":
                return _observed(await episode.reset(ResetArguments.model_validate(data)))
            case "step":
                return _observed(await episode.step(CodeAction.model_validate(data)))
            case "state":
                return {"type": "state", "data": episode.state.model_dump()}
            case "close":
                return None
            case other:
                return _error("UNKNOWN_TYPE", f"Unknown message type: {other}")
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        return _error("VALIDATION_ERROR", "Invalid message", errors=problems)
    except ApiError as error:
        code = {503: "CAPACITY_REACHED", 404: "SESSION_ERROR"}.get(error.status, "EXECUTION_ERROR")
        return _error(code, error.body.message)
    except InfrastructureError as error:
        return _error("EXECUTION_ERROR", f"the sandbox failed, not the program: {error}")


def _observation(execution: Execution) -> CodeObservation:
    failed = 1 if execution.signal is None else 128 + execution.signal
    code = execution.exit_code if execution.exit_code is not None else 0 if execution.ok else failed
    stderr = "\n".join(part.rstrip("\n") for part in (execution.stderr, execution.message) if part)
    return CodeObservation(
        stdout=execution.stdout,
        stderr=stderr,
        exit_code=code,
        value=execution.value,
        status=execution.status.value,
    )


def _observed(observation: CodeObservation) -> dict[str, Any]:
    data = {"observation": observation.model_dump(), "reward": None, "done": False}
    return {"type": "observation", "data": data}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
