"""Environments of verifiers: the tasks, tools and rewards of an installed taskset (`verifiers:NAME`).

The package runs its own part of an episode: setup, tool servers, the user's turns, finalize and rewards. The rollout is
ours, so that tokens are exact and tool results typed. The package is imported only when a recipe names it.
"""

import asyncio
import contextvars
import importlib
import importlib.metadata
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rstar2.agent import ToolSchema
from rstar2.engine.protocol import Message
from rstar2.environments.code_places import MAX_MESSAGE_CHARS
from rstar2.environments.messages import mistake_in
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.source import EnvironmentSource
from rstar2.environments.user_code import Caller, mistakes_named
from rstar2.errors import UserError
from rstar2.records import Outcome, Problem, StopReason, ToolResult, ToolStatus, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection
    from rstar2.environments.verifiers_seat import Seat

SERIES = "0.4"
"""The supported release series of verifiers."""
CLOSE_S = 30.0
"""Seconds to remove an episode's tool servers and files."""
NO_OUTPUT_TEXT = "[The tool returned nothing.]"
_OWN = str(Path(__file__).parents[1])
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_STOPS = {Outcome.TRUNCATED: "max_output_tokens", Outcome.TURN_LIMIT: "max_turns"}
"""Verifiers' names of the limits that a rollout can reach."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    schema: ToolSchema
    server: str
    name: str
    """The tool's name on the server, without the prefix."""


@dataclass(frozen=True, slots=True)
class VerifiersTool:
    """Satisfies `Tool`: a call goes to the episode's MCP server, which is verifiers' own."""

    source: str
    listed: ListedTool
    seat: "Seat"
    caller: Caller

    @property
    def schema(self) -> ToolSchema:
        return self.listed.schema

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        what = f"{self.source}: tool {self.schema.name}"

        async def run() -> tuple[bool, str]:
            result: tuple[bool, str] = await self.caller.call(what, self._call, arguments)
            return result

        succeeded, text = await self.seat.call(self.schema.name, arguments, run)
        if succeeded and not text:
            return ToolResult(ToolStatus.NO_OUTPUT, NO_OUTPUT_TEXT)
        return ToolResult(ToolStatus.OK if succeeded else ToolStatus.RAISED, text)

    async def _call(self, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        from verifiers.v1.harnesses.utils.mcp import mcp_client

        async with mcp_client({"url": self.seat.urls[self.listed.server]}) as client:
            result = await client.call_tool(self.listed.name, dict(arguments))
        texts = [block.text if block.type == "text" else f"[{block.type}]" for block in result.content]
        return not result.is_error, "\n".join(texts)

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class VerifiersEpisode:
    """Satisfies `Episode`."""

    source: str
    seat: "Seat"
    running: "asyncio.Task[Any]"
    """Verifiers' own episode."""
    caller: Caller
    prompt: tuple[Any, ...]
    """The messages before the model's first turn, in verifiers' types."""
    observation: str
    tools: tuple[VerifiersTool, ...]

    @property
    def is_over(self) -> bool:
        return self.seat.is_over

    async def reply(self, said: str) -> str | None:
        reply: str | None = await self.caller.call(f"{self.source}: reply", self.seat.say, said)
        if reply is None and self.running.done():
            self._require_success(self.running.result())
        return reply

    async def score(self, trace: Trace) -> Judgement:
        def record(writer: Any) -> None:
            schemas = [tool.schema for tool in self.tools]
            writer.rewrite(self.prompt, schemas, trace, self.seat.said, self.seat.heard)

        async def finished() -> Any:
            return await asyncio.shield(self.running)

        last = trace.turns[-1] if trace.turns else None
        is_cut_off = last is not None and last.stop_reason is StopReason.TOKEN_LIMIT
        self.seat.finish(record, _STOPS.get(trace.outcome), last.text if last and is_cut_off else None)
        return self._judgement(await self.caller.call(f"{self.source}: reward", finished))

    def _judgement(self, episode: Any) -> Judgement:
        (trace,) = self._require_success(episode)
        if not trace.rewards:
            raise self.caller.fault(f"{self.source} records no reward")
        details = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        details |= {name: value for name, value in trace.metrics.items() if value is not None and name not in details}
        if not all(map(math.isfinite, details.values())):
            raise self.caller.fault(f"{self.source}: a reward is not a finite number: {details}")
        return Judgement(score=trace.reward, details=details, format_penalty=0.0)

    def _require_success(self, episode: Any) -> Sequence[Any]:
        """The traces of a finished episode. If it failed, the fault names the file and the line."""
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            last = errors[-1]
            place = _place_of(last.traceback or "")
            raise self.caller.fault(f"{self.source}: {place}{last.type}: {last.message[:MAX_MESSAGE_CHARS]}")
        late = next((trace.stop_condition for trace in episode.traces if trace.is_timeout), None)
        if late is not None:
            raise self.caller.fault(f"{self.source}: the task's own limit ended the episode: {late}")
        if len(episode.traces) != 1:
            raise self.caller.fault(f"{self.source}: the episode has {len(episode.traces)} traces and not one")
        traces: Sequence[Any] = episode.traces
        return traces

    async def close(self) -> None:
        self.seat.abandon()
        self.running.cancel()
        await asyncio.wait({self.running}, timeout=CLOSE_S)


@dataclass(frozen=True, slots=True)
class VerifiersEnvironment:
    """Satisfies `Environment`."""

    source: str
    environment: Any
    """The package's own environment, which runs the episodes."""
    caller: Caller
    listed: tuple[ListedTool, ...]
    scores_truncated: bool = True

    def opening(self, problem: Problem) -> Opening:
        data = self._task_of(problem).data
        messages = _messages_of(data)
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": ""})
        return Opening(tuple(messages), tuple(tool.schema for tool in self.listed))

    async def begin(self, problem: Problem) -> VerifiersEpisode:
        from verifiers.v1 import EvalClientConfig, ModelContext

        from rstar2.environments.verifiers_seat import CURRENT, Seat
        from rstar2.environments.verifiers_trace import MODEL

        task = self._task_of(problem)
        seat = Seat(task)
        context = contextvars.copy_context()
        context.run(CURRENT.set, seat)
        # The package requires a model and its address; the seat never calls them.
        model = ModelContext(model=MODEL, client=EvalClientConfig())
        running = asyncio.create_task(self.environment.run_episode(task, model), context=context)
        running.add_done_callback(lambda _: seat.end())
        tools = tuple(VerifiersTool(self.source, tool, seat, self.caller) for tool in self.listed)
        episode = VerifiersEpisode(self.source, seat, running, self.caller, (), "", tools)
        try:
            first: str | None = await self.caller.call(f"{self.source}: setup", seat.next_message)
            if first is None:
                if running.done():
                    episode._require_success(running.result())
                raise self.caller.fault(f"{self.source} ended the episode before the model's first turn")
            return replace(episode, prompt=_prompt_of(task.data, first), observation=first)
        except BaseException:
            await episode.close()
            raise

    def _task_of(self, problem: Problem) -> Any:
        """The task of a row; UserError if it is invalid, or needs what this process does not have."""
        taskset = self.environment.taskset
        task_class = type(taskset).task_type()
        try:
            data = task_class.data_type().model_validate(problem.row)
        except ValidationError as error:
            where, message = _first_mistake(error)
            raise mistake_in(problem, f"column {where} is no field of {self.source}: {message}") from None
        needs = {"image": data.image, "skills": data.skills, "agent_user": data.agent_user}
        needs["network_allow"] = data.network_allow != ["*"]
        needs["network_block"] = data.network_block
        missing = next((name for name, value in needs.items() if value), None)
        if missing is not None:
            raise mistake_in(
                problem,
                f"the task of {self.source} sets {missing}, which needs a container; tasks that run in this process "
                "are supported",
            )
        return task_class(data, taskset.config.task)

    def solution(self, _problem: Problem) -> Sequence[str] | None:
        return None


def _messages_of(data: Any) -> list[Message]:
    messages: list[Message] = []
    if data.system_prompt:
        messages.append({"role": "system", "content": data.system_prompt})
    if isinstance(data.prompt, str):
        messages.append({"role": "user", "content": data.prompt})
    for message in data.prompt if isinstance(data.prompt, list) else ():
        content = message.content
        if not isinstance(content, str | None) and any(part.type != "text" for part in content):
            raise UserError("the prompt of a task holds an image, and rstar2 trains text models")
        text = content if isinstance(content, str) else "\n".join(part.text for part in content or ())
        messages.append({"role": message.role, "content": text})
    return messages


def _prompt_of(data: Any, first: str) -> tuple[Any, ...]:
    """The messages before the first turn, in verifiers' types."""
    from verifiers.v1 import SystemMessage, UserMessage

    prompt: list[Any] = [SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    if isinstance(data.prompt, str):
        prompt.append(UserMessage(content=data.prompt))
    elif data.prompt:
        prompt += data.prompt
    if first or not prompt:
        prompt.append(UserMessage(content=first))
    return tuple(prompt)


def _place_of(traceback: str) -> str:
    """`FILE, line N: ` of the innermost line of a taskset; empty if there is none."""
    for file, line in reversed(_FRAME.findall(traceback)):
        is_package = "/verifiers/v1/" in file and "/verifiers/v1/tasksets/" not in file
        is_library = "/lib/python" in file and "-packages/" not in file
        if not (is_package or is_library or file.startswith((_OWN, "<"))):
            return f"{file}, line {line}: "
    return ""


def _first_mistake(error: ValidationError) -> tuple[str, str]:
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def _package(source: str) -> ModuleType:
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"environment.source: {source} needs the package verifiers: pip install 'verifiers~={SERIES}.0'"
        ) from None
    if not version.startswith(f"{SERIES}."):
        raise UserError(
            f"environment.source: {source} needs verifiers {SERIES}, and {version} is installed: "
            f"pip install 'verifiers~={SERIES}.0'"
        )
    return importlib.import_module("verifiers.v1")


def _config_of(section: "EnvironmentSection") -> tuple[Any, Any]:
    """The package's config of the environment, and the selection of tasks. UserError if the environment cannot be
    played from outside."""
    vf = _package(section.source)
    name = section.source.partition(":")[2]
    if not name:
        raise UserError("environment.source: write verifiers:NAME, with the name of an installed taskset")
    from rstar2.environments.verifiers_seat import HARNESS, unsupported_hook

    with mistakes_named(f"environment.source: {section.source}"):
        roles = _roles(vf, name)
        task_class = vf.task_type(name)
        harness = vf.default_harness_id(name)
    refusals = {
        f"has {len(roles)} agents ({', '.join(roles)}), and the model can play only one": len(roles) != 1,
        f"brings a harness of its own ({harness})": harness != "bash",
        "gives its agent a harness of its own": any(role.harness is not None for role in roles.values()),
        f"needs a container ({task_class.__name__}.NEEDS_CONTAINER)": task_class.NEEDS_CONTAINER,
        f"reads or rewrites model calls ({unsupported_hook(task_class)})": unsupported_hook(task_class) is not None,
    }
    reason = next((reason for reason, applies in refusals.items() if applies), None)
    if reason is not None:
        raise UserError(f"environment.source: {section.source} {reason}: rstar2 cannot train on it")
    settings = dict(section.settings)
    select = settings.pop("select", {})
    seat = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
    try:
        config = vf.resolve_env_config({"taskset": {**settings, "id": name}, next(iter(roles)): seat})
        return config, vf.SelectConfig.model_validate(select)
    except ValidationError as error:
        where, message = _first_mistake(error)
        where = where.removeprefix("taskset.")
        raise UserError(f"environment.settings.{where}: {message}") from None


def _roles(vf: ModuleType, name: str) -> dict[str, Any]:
    fields = vf.env_config_type(name).model_fields
    return {role: field.default for role, field in fields.items() if isinstance(field.default, vf.AgentConfig)}


def verifiers_rows(section: "EnvironmentSection") -> Iterator[Mapping[str, Any]]:
    """The selected tasks of the taskset."""
    config, select = _config_of(section)
    with mistakes_named(f"environment.source: {section.source}"):
        taskset = _package(section.source).load_taskset(config.taskset).select(select)
    if not taskset.bounded:
        raise UserError(
            f"environment.settings.select.limit: {section.source} has tasks without end: say how many to take"
        )
    tasks = iter(taskset)
    while True:
        with mistakes_named(f"environment.source: {section.source}"):
            task = next(tasks, None)
        if task is None:
            return
        yield task.data.model_dump(mode="json", exclude_defaults=True)


@asynccontextmanager
async def open_verifiers(section: "EnvironmentSection", _services: Services) -> AsyncIterator[VerifiersEnvironment]:
    config, _ = _config_of(section)
    caller = Caller.of(section)
    with mistakes_named(f"environment.source: {section.source}"):
        environment = _package(section.source).load_environment(config)
        taskset = environment.taskset
        task_class = type(taskset).task_type()
        toolsets = [*taskset.toolsets(taskset.config), *task_class.toolsets(taskset.config.task)]
    listed = await caller.call(f"the tools of {section.source}", _listed_tools, section.source, toolsets)
    async with environment.serving():
        yield VerifiersEnvironment(section.source, environment, caller, listed)


async def _listed_tools(source: str, toolsets: Sequence[Any]) -> tuple[ListedTool, ...]:
    from mcp.server.mcpserver.tools import ToolManager
    from verifiers.v1 import Toolset
    from verifiers.v1.harnesses.utils.mcp import mcp_client

    listed: list[ListedTool] = []
    for toolset in toolsets:
        if toolset.config.url:
            async with mcp_client({"url": toolset.config.url}) as client:
                tools = [(tool.name, tool.description, tool.input_schema) for tool in (await client.list_tools()).tools]
        elif type(toolset).register is Toolset.register:
            # A toolset only needs `add_tool` of its server. A real server would set up logging for the process.
            manager = ToolManager()
            toolset.register(manager)
            tools = [(tool.name, tool.description, tool.parameters) for tool in manager.list_tools()]
        else:
            raise UserError(
                f"environment.source: {source} has tools that differ from task to task ({type(toolset).__name__}): "
                "rstar2 needs them before the first task"
            )
        server = toolset.server_name
        for name, description, parameters in tools:
            schema = ToolSchema(f"{server}_{name}" if server else name, description or "", parameters)
            listed.append(ListedTool(schema, server, name))
    return tuple(listed)


VERIFIERS = EnvironmentSource(open_verifiers, rows=verifiers_rows)
