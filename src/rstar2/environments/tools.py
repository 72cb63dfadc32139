"""`environment.tools`: named tools or the user's own, which every episode gets besides the environment's."""

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from rstar2.agent import Tool, ToolSchema
from rstar2.agent.tool import close_all, fork_all
from rstar2.environments.code_places import place_of_function
from rstar2.environments.function_tools import FunctionTool, read_signature
from rstar2.environments.protocol import Environment, Episode, Opening, Services, fork_of
from rstar2.environments.user_code import Caller, load_object, mistakes_named
from rstar2.environments.wrapped import WrappedEnvironment, WrappedEpisode
from rstar2.errors import UserError
from rstar2.extensions import TOOLS
from rstar2.records import Problem

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

FACTORY_NAME = "make_tool"
"""A function of this name returns a tool, whatever its signature says."""
MakeTool = Callable[[Services, Caller], Tool]
"""Makes the tool of one episode."""


class ToolSource(Protocol):
    """Makes the tools of each episode."""

    @property
    def schemas(self) -> Sequence[ToolSchema]: ...

    async def make(self) -> Sequence[Tool]:
        """Make the tools of one episode, which closes them."""
        ...


def load_tool(name: str, what: str = "environment.tools") -> MakeTool:
    """Load a tool: an entry of `TOOLS`; or, as `file:PATH.py:NAME` or `package.module:NAME`, a function with type hints
    and a docstring, a class with `of(recipe, executor)`, or a function without arguments that returns a tool. UserError
    begins with `what`."""
    if name in TOOLS:
        tool_class = TOOLS.load(name)
        return lambda services, _caller: tool_class.of(services.recipe, services.executor)
    if ":" not in name:
        known = " nor ".join(TOOLS)
        raise UserError(f"{what}: {name!r} is neither {known}, nor file:PATH.py:NAME, nor package.module:NAME")
    found = load_object(name, what)
    where = f"{what}: {name}"
    if not callable(found):
        raise UserError(f"{where} is a {type(found).__name__}: name a function, a class, or a factory of tools")
    if hasattr(found, "of"):
        return _factory(found.of, where, takes_services=True)
    if isinstance(found, type) or name.endswith(f":{FACTORY_NAME}") or _makes_tools(found):
        return _factory(found, where, takes_services=False)
    with mistakes_named(what):
        signature = read_signature(found)
    return lambda _services, caller: FunctionTool(found, signature, caller)


def _makes_tools(function: Callable[..., Any]) -> bool:
    """Whether a function is a factory instead of a tool: it has no parameters, and its return annotation is a tool or
    missing."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:
        return False  # `read_signature` reports what is wrong
    returned = signature.return_annotation
    return not signature.parameters and (returned is signature.empty or hasattr(returned, "call"))


def _factory(make: Callable[..., Any], where: str, *, takes_services: bool) -> MakeTool:
    def make_tool(services: Services, _caller: Caller) -> Tool:
        with mistakes_named(where):
            tool = make(services.recipe, services.executor) if takes_services else make()
        require_tool(tool, f"{where}: {place_of_function(make)}what it returns")
        return tool  # type: ignore[no-any-return]

    return make_tool


def require_tool(tool: Any, what: str) -> None:
    """Raise UserError, beginning with `what`, unless the object satisfies `Tool`."""
    for attribute in ("schema", "call", "close"):
        if not hasattr(tool, attribute):
            raise UserError(f"{what} has no {attribute}, so it is no tool")
    if not isinstance(tool.schema, ToolSchema):
        raise UserError(f"{what} has a schema of type {type(tool.schema).__name__}: make it a rstar2.agent.ToolSchema")
    for name, arguments in (("call", ({},)), ("close", ())):
        method = getattr(tool, name)
        if not inspect.iscoroutinefunction(method):
            raise UserError(f"{what} has a {name} that is not async: write `async def {name}(…)`")
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError as error:
            raise UserError(
                f"{what} cannot be asked to {name} ({error}): a tool has call(arguments), close()"
            ) from None


@dataclass(frozen=True, slots=True)
class NamedTools:
    """Satisfies `ToolSource`."""

    schemas: tuple[ToolSchema, ...]
    makers: tuple[Callable[[], Tool], ...]

    async def make(self) -> Sequence[Tool]:
        return tuple(make() for make in self.makers)


@asynccontextmanager
async def open_tools(
    section: "EnvironmentSection", names: Sequence[str], services: Services
) -> AsyncIterator[NamedTools]:
    """Open the named tools. Each is made once to read its schema."""
    caller = Caller.of(section)
    makers = tuple(_bound(load_tool(name), services, caller) for name in names)
    tools = [make() for make in makers]
    schemas = tuple(tool.schema for tool in tools)
    await close_all(tools)
    yield NamedTools(schemas, makers)


def _bound(make: MakeTool, services: Services, caller: Caller) -> Callable[[], Tool]:
    return lambda: make(services, caller)


@dataclass(frozen=True, slots=True)
class _EpisodeWithTools(WrappedEpisode):
    more_tools: tuple[Tool, ...]

    @property
    def tools(self) -> Sequence[Tool]:
        return (*self.episode.tools, *self.more_tools)

    async def fork(self) -> Self | None:
        tools = await fork_all(self.more_tools)
        if tools is None:
            return None
        try:
            episode = await fork_of(self.episode)
        except BaseException:
            await close_all(tools)
            raise
        if episode is None:
            await close_all(tools)
            return None
        return replace(self, episode=episode, more_tools=tools)

    async def close(self) -> None:
        try:
            await close_all(self.more_tools)
        finally:
            await self.episode.close()


@dataclass(frozen=True, slots=True)
class _EnvironmentWithTools(WrappedEnvironment):
    sources: tuple[ToolSource, ...]

    def opening(self, problem: Problem, /) -> Opening:
        opening = self.environment.opening(problem)
        schemas = (*opening.tools, *(schema for source in self.sources for schema in source.schemas))
        names = [schema.name for schema in schemas]
        if len(set(names)) < len(names):
            raise UserError(f"environment.tools: two tools have the same name: {', '.join(names)}")
        return replace(opening, tools=schemas)

    async def begin(self, problem: Problem, /) -> Episode:
        episode = await self.environment.begin(problem)
        made = list[Tool]()
        try:
            for source in self.sources:
                made += await source.make()
        except BaseException:
            await _EpisodeWithTools(episode, tuple(made)).close()
            raise
        return _EpisodeWithTools(episode, tuple(made))


def with_tools(environment: Environment, *sources: ToolSource) -> Environment:
    """The environment, with the sources' tools added to its episodes' own."""
    used = tuple(source for source in sources if source.schemas)
    return _EnvironmentWithTools(environment, used) if used else environment
