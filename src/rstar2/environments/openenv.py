"""OpenEnv: the tasks, tools and rewards of a running server (`openenv:URL`).

A row of data becomes the arguments of the server's reset. The model acts by tool calls: it has the tools that the
server lists or, if the server has its own kind of action, one tool with the action's schema. Every episode has its own
session.
"""

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, ValidationError

from rstar2.agent import ToolSchema
from rstar2.environments.messages import opening_messages, prompt_of, row_of
from rstar2.environments.openenv_client import (
    MAX_MESSAGE_BYTES,
    OpenEnvSession,
    ServerRefusalError,
    StepAnswer,
    read_tasks,
)
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.source import EnvironmentSource
from rstar2.environments.user_code import Caller
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Problem, ToolResult, ToolStatus, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

OVER_TEXT = "[The episode is over. The call was not run.]"
NOTHING_TEXT = "[The environment shows nothing.]"
_TOOL_ACTIONS = {"Action", "CallToolAction", "ListToolsAction"}
"""Titles of the action schema of a server that has MCP tools."""
_TOOL_ERRORS = {
    "execution_error": ToolStatus.RAISED,
    "invalid_args": ToolStatus.BAD_ARGUMENTS,
    "tool_not_found": ToolStatus.UNKNOWN_TOOL,
    "timeout": ToolStatus.TIMED_OUT,
}
"""The error types that are the call's fault. A transport error is the server's."""
_URL = re.compile(r"(https?)://\S+")


class OpenEnvSettings(BaseModel):
    """`[environment.settings]` of an OpenEnv server."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    instructions: str = ""
    """Instructions to the model, before the first observation."""
    split: str | None = None
    """The split of the server's tasks. If left out, its first split for training."""
    reward: Literal["last", "sum"] = "last"
    """Whether the score is the last reward of an episode, as in OpenEnv's own rollouts, or the sum of all."""

    @classmethod
    def of(cls, section: "EnvironmentSection") -> "OpenEnvSettings":
        try:
            return cls.model_validate(section.settings)
        except ValidationError as error:
            first = error.errors()[0]
            field_name = ".".join(map(str, first["loc"]))
            raise UserError(f"environment.settings.{field_name}: {first['msg']}") from None


async def ask(caller: Caller, what: str, function: Callable[..., Awaitable[StepAnswer]], /, *args: Any) -> StepAnswer:
    """Send a reset or a step, never twice: the session keeps state, so a failure is final."""
    try:
        step: StepAnswer = await caller.call(what, function, *args)
    except (ServerRefusalError, EnvironmentCodeError):
        raise
    except InfrastructureError as error:
        raise caller.fault(f"{what}: {error}") from error
    return step


@dataclass(frozen=True, slots=True)
class OpenEnvTool:
    """Satisfies `Tool`: one kind of step of the episode."""

    schema: ToolSchema
    action: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Turns a call's arguments into the data of a step."""
    episode: "OpenEnvEpisode"

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return await self.episode.step(self.schema.name, self.action(arguments))

    async def close(self) -> None:
        pass


@dataclass(slots=True)
class OpenEnvEpisode:
    """Satisfies `Episode`."""

    session: OpenEnvSession
    caller: Caller
    reward: Literal["last", "sum"]
    observation: str
    is_over: bool
    tools: Sequence[OpenEnvTool] = ()
    rewards: list[float] = field(default_factory=list)
    num_steps: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step(self, name: str, action: Mapping[str, Any]) -> ToolResult:
        """Make a step. The calls of one turn come concurrently; they are processed in the order in which they were
        written."""
        async with self._turn:
            if self.is_over:
                return ToolResult(ToolStatus.NO_OUTPUT, OVER_TEXT)
            return await self._step(name, action)

    async def _step(self, name: str, action: Mapping[str, Any]) -> ToolResult:
        try:
            step = await ask(self.caller, f"{self.session.url}: step {name}", self.session.step, action)
        except ServerRefusalError as error:
            if error.code != "VALIDATION_ERROR":
                raise self.caller.fault(f"{self.session.url}: step {name}: {error}") from error
            return ToolResult(ToolStatus.BAD_ARGUMENTS, f"The call was not run: {_errors_of(error.details)}")
        self.num_steps += 1
        self.is_over = step.done
        if step.reward is not None:
            self.rewards.append(step.reward)
        try:
            return result_of(step.observation)
        except InfrastructureError as error:
            raise self.caller.fault(f"{self.session.url}: step {name}: {error}") from error

    async def reply(self, _said: str) -> str | None:
        return None

    async def score(self, _trace: Trace) -> Judgement:
        if self.is_over and not self.rewards:
            raise self.caller.fault(f"{self.session.url}: the server ended the episode without a reward")
        # An episode that the model gave up, or never acted in, has reward 0.
        total, last = sum(self.rewards), self.rewards[-1] if self.rewards else 0.0
        details = {"total_reward": total, "steps": float(self.num_steps)}
        return Judgement(score=last if self.reward == "last" else total, details=details, format_penalty=0.0)

    async def close(self) -> None:
        await self.session.close()


@dataclass(frozen=True, slots=True)
class OpenEnvEnvironment:
    """Satisfies `Environment`."""

    url: str
    settings: OpenEnvSettings
    caller: Caller
    http: aiohttp.ClientSession
    schemas: tuple[ToolSchema, ...]
    has_listed_tools: bool
    """Whether the tools are those that the server lists; otherwise there is one tool, whose arguments are an action."""
    scores_truncated: bool = True

    def opening(self, problem: Problem) -> Opening:
        *earlier, last = opening_messages(problem, prompt_of(row_of(problem)))
        text = "\n\n".join(filter(None, (self.settings.instructions, last["content"])))
        return Opening((*earlier, {"role": "user", "content": text}), self.schemas)

    async def begin(self, problem: Problem) -> OpenEnvEpisode:
        # Rollouts of one problem are compared with one another, so they begin in the same state.
        arguments = {"seed": zlib.crc32(problem.id.encode()) & 0x7FFFFFFF, **problem.row}
        session = OpenEnvSession(self.url, self.http)
        try:
            step = await self._reset(session, arguments)
            first = f"\n\n{text_of(step.observation)}".rstrip()
            episode = OpenEnvEpisode(session, self.caller, self.settings.reward, first, step.done)
            episode.tools = [OpenEnvTool(schema, self._action_of(schema), episode) for schema in self.schemas]
            return episode
        except BaseException:
            await session.close()
            raise

    async def _reset(self, session: OpenEnvSession, arguments: Mapping[str, Any]) -> StepAnswer:
        patience_s = 0.8 * self.caller.deadline_s
        try:
            return await ask(self.caller, f"{self.url}: reset", session.reset, arguments, patience_s)
        except ServerRefusalError as error:
            if error.code == "CAPACITY_REACHED":
                raise self._no_place(error) from error
            raise self.caller.fault(f"{self.url}: reset: {error}") from error

    def _no_place(self, error: ServerRefusalError) -> Exception:
        maximum = error.details.get("max_sessions", "its limit of")
        sentence = (
            f"the server at {self.url} has no place for a further session: {maximum} at a time are allowed and in use. "
            "Start it with max_concurrent_envs of at least the number of rollouts that run at the same time"
        )
        # With a single session no group can be sampled, so leaving rollouts out would not help.
        return UserError(f"environment.source: {sentence}") if maximum == 1 else self.caller.fault(sentence)

    def _action_of(self, schema: ToolSchema) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        if not self.has_listed_tools:
            return lambda arguments: arguments
        return lambda arguments: {"type": "call_tool", "tool_name": schema.name, "arguments": arguments}

    def solution(self, _problem: Problem) -> Sequence[str] | None:
        return None


def text_of(observation: Mapping[str, Any]) -> str:
    """The text of an observation for the model: a single text as it is, anything else as JSON, without the server's own
    `metadata`."""
    shown = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
    if not shown:
        return ""
    only = next(iter(shown.values())) if len(shown) == 1 else shown
    return only if isinstance(only, str) else json.dumps(shown, ensure_ascii=False)


def result_of(observation: Mapping[str, Any]) -> ToolResult:
    """Convert a step's observation into a tool result. InfrastructureError if the server could not run the tool."""
    if "tool_name" not in observation:
        text = text_of(observation)
        return ToolResult(ToolStatus.OK, text) if text else ToolResult(ToolStatus.NO_OUTPUT, NOTHING_TEXT)
    error = observation.get("error")
    if isinstance(error, dict):
        status = _TOOL_ERRORS.get(str(error.get("error_type")))
        message = str(error.get("message", ""))
        if status is None:
            raise InfrastructureError(f"{error.get('error_type')}: {message[:500]}")
        return ToolResult(status, message)
    result = observation.get("result")
    failed = isinstance(result, dict) and bool(result.get("is_error") or result.get("isError"))
    text = _text_of_result(result)
    if not text and not failed:
        return ToolResult(ToolStatus.NO_OUTPUT, NOTHING_TEXT)
    return ToolResult(ToolStatus.RAISED if failed else ToolStatus.OK, text)


def _text_of_result(result: Any) -> str:
    """The texts of an MCP result, or its data as JSON."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        blocks = [block for block in result["content"] if isinstance(block, dict)]
        texts = [str(block["text"]) for block in blocks if block.get("type") == "text" and "text" in block]
        if texts:
            return "\n".join(texts)
    value = result.get("data", result) if isinstance(result, dict) else result
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _errors_of(details: Mapping[str, Any]) -> str:
    """The server's pydantic errors, for the model to read."""
    errors = [error for error in details.get("errors", ()) if isinstance(error, dict)]
    lines = [f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}" for error in errors[:5]]
    return "; ".join(lines) or str(details.get("message", ""))


def url_of(section: "EnvironmentSection") -> str:
    url = section.source.partition(":")[2].rstrip("/")
    if not _URL.fullmatch(url):
        raise UserError(
            f"environment.source: {section.source!r} names no server: write it as openenv:http://HOST:PORT or "
            "openenv:https://HOST"
        )
    return url


def openenv_rows(section: "EnvironmentSection") -> Iterator[Mapping[str, Any]]:
    return read_tasks(url_of(section), OpenEnvSettings.of(section).split, section.deadline_s)


@asynccontextmanager
async def open_openenv(section: "EnvironmentSection", _services: Services) -> AsyncIterator[OpenEnvEnvironment]:
    url, settings, caller = url_of(section), OpenEnvSettings.of(section), Caller.of(section)
    # Each episode holds a connection, so their number is not limited here. `Caller` sets the deadlines.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=section.deadline_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        schemas, are_listed = await _tools(url, http, caller)
        yield OpenEnvEnvironment(url, settings, caller, http, schemas, are_listed)


async def _tools(url: str, http: aiohttp.ClientSession, caller: Caller) -> tuple[tuple[ToolSchema, ...], bool]:
    """The tools, and whether they are the server's list."""
    try:
        action = await caller.call(f"{url}: schema", _action_schema, url, http)
        title = action.get("title")
        if title not in _TOOL_ACTIONS:
            return (_tool_of_action(url, action),), False
        session = OpenEnvSession(url, http)
        try:
            step = await ask(caller, f"{url}: list_tools", session.step, {"type": "list_tools"})
        finally:
            await session.close()
    except InfrastructureError as error:
        raise InfrastructureError(f"the OpenEnv server cannot be used: {error}") from error
    tools = step.observation.get("tools")
    if not isinstance(tools, list) or not tools:
        metadata = step.observation.get("metadata")
        reason = metadata.get("error", "") if isinstance(metadata, dict) else ""
        raise UserError(f"environment.source: the server at {url} lists no tools {reason}".rstrip())
    return tuple(_listed_tool(url, tool) for tool in tools), True


async def _action_schema(url: str, http: aiohttp.ClientSession) -> Mapping[str, Any]:
    try:
        async with http.get(f"{url}/schema") as response:
            if response.status != 200:
                raise UserError(f"environment.source: {url}/schema answers {response.status}: is it an OpenEnv server?")
            text = await response.content.read(MAX_MESSAGE_BYTES)
    except (aiohttp.ClientError, OSError) as error:
        raise InfrastructureError(f"{url}: {error}") from error
    try:
        schemas = json.loads(text)
        action = schemas["action"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"environment.source: {url}/schema shows no action: is it an OpenEnv server?") from None
    if not isinstance(action, dict):
        raise UserError(f"environment.source: {url}/schema shows an action that is no JSON schema")
    return action


def _tool_of_action(url: str, action: Mapping[str, Any]) -> ToolSchema:
    """One tool whose arguments are the action, without `metadata`, which every action of OpenEnv has."""
    properties = action.get("properties")
    if action.get("type") != "object" or not isinstance(properties, dict):
        raise UserError(f"environment.source: the action of {url} is no object with fields, so it cannot be a tool")
    shown = {name: value for name, value in properties.items() if name != "metadata"}
    parameters = {key: value for key, value in action.items() if key not in ("title", "description")}
    name = re.sub(r"\W", "_", str(action.get("title") or "act"))
    return ToolSchema(name, str(action.get("description", "")), {**parameters, "properties": shown})


def _listed_tool(url: str, tool: Any) -> ToolSchema:
    if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
        raise UserError(f"environment.source: the server at {url} lists a tool without an input_schema")
    return ToolSchema(str(tool.get("name", "")), str(tool.get("description", "")), tool["input_schema"])


OPENENV = EnvironmentSource(open_openenv, rows=openenv_rows)
