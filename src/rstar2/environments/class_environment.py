"""Makes an environment from a user's class: one derived from `Task`, or one written for TRL's `environment_factory`.

Each object of a `Task` is one episode, and is closed with it. A class for TRL has no `close`: as in TRL, its objects
are reused after `reset()`, so there are never more objects than concurrent episodes.
"""

import copy
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rstar2.environments.class_shape import ClassShape, read_shape, settings_of
from rstar2.environments.code_places import describe, place_of_function
from rstar2.environments.function_tools import FunctionTool, refusal
from rstar2.environments.messages import mistake_in, opening_messages, prompt_of, row_of, without_prompt
from rstar2.environments.object_calls import ObjectCalls, make_object
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.reward import read_judgement
from rstar2.environments.signatures import arguments_for, can_bind
from rstar2.environments.task import Task
from rstar2.environments.user_code import Caller
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Problem, Trace
from rstar2.records.trace import after_thought

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

MAX_SHOWN_CHARS = 60
"""The number of characters shown of a value that `reset` cannot take."""


@dataclass(slots=True)
class ClassEpisode:
    """Satisfies `Episode`."""

    task: Any
    """The object of the user's class."""
    calls: ObjectCalls
    environment: "ClassEnvironment"
    tools: Sequence[FunctionTool]
    observation: str = ""
    _is_closed: bool = field(default=False, init=False)
    _fault: EnvironmentCodeError | None = field(default=None, init=False)

    @property
    def is_over(self) -> bool:
        if not self.environment.shape.is_task:
            return False
        what = f"{self.environment.shape.name}.is_over"
        try:
            return self.environment.caller.call_now(what, lambda: bool(self.task.is_over))  # type: ignore[no-any-return]
        except EnvironmentCodeError as fault:  # a property raised: the episode ends, and `score` raises the fault
            self._fault = fault
            return True

    async def reset(self, columns: Mapping[str, Any]) -> None:
        self.observation = await self._text("reset", self.task.reset, **columns) or ""

    async def reply(self, said: str) -> str | None:
        if not self.environment.shape.is_task:
            return None
        return await self._text("reply", self.task.reply, after_thought(said).strip())

    async def score(self, trace: Trace) -> Judgement:
        if self._fault is not None:
            raise self._fault
        function = self.task.get_reward
        what = f"{self.environment.shape.name}.get_reward"
        value = await self.calls.call(what, function, *((trace,) if can_bind(function, trace) else ()))
        return read_judgement(value, what, function, self.environment.caller)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.environment.take_back(self.task, self.calls)

    async def _text(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
        what = f"{self.environment.shape.name}.{name}"
        value = await self.calls.call(what, function, *args, **kwargs)
        if value is None or isinstance(value, str):
            return value
        place, kind = place_of_function(function), type(value).__name__
        raise self.environment.caller.fault(f"{what}: {place}returned a {kind}, not a text or None")


@dataclass(frozen=True, slots=True)
class ClassEnvironment:
    """Satisfies `Environment`."""

    make: Callable[[], Any]
    """Makes an object of the class."""
    first: Any
    """An object for reading the class. It writes prompts and solutions, and plays no episode of a `Task`."""
    shape: ClassShape
    caller: Caller
    spare: list[tuple[Any, ObjectCalls]]
    """Objects of a class for TRL that no episode is using."""
    scores_truncated: bool = True

    def opening(self, problem: Problem) -> Opening:
        row = row_of(problem)
        self._columns(problem, row)
        prompt: Any = prompt_of(row)
        system_text = ""
        if self.shape.is_task:
            prompt = self.caller.call_in_time(f"{self.shape.name}.prompt", self.first.prompt, copy.deepcopy(dict(row)))
            system_text = self.first.system_text
        messages = opening_messages(problem, prompt, system_text)
        if type(self.first).reset is Task.reset and not messages[-1]["content"]:
            raise without_prompt(problem)
        return Opening(messages, tuple(signature.schema for signature in self.shape.tools.values()))

    async def begin(self, problem: Problem) -> ClassEpisode:
        columns = self._columns(problem, copy.deepcopy(dict(row_of(problem))))
        task, calls = self.spare.pop() if self.spare else await make_object(self.make, self.shape.name, self.caller)
        tools = [FunctionTool(getattr(task, key), signature, calls) for key, signature in self.shape.tools.items()]
        episode = ClassEpisode(task, calls, self, tools)
        try:
            await episode.reset(columns)
            if not episode.observation and not self.opening(problem).messages[-1]["content"]:
                raise without_prompt(problem, ", or reset() must return the text")
        except BaseException:
            with suppress(UserError, InfrastructureError):  # the first error is the one to show
                await episode.close()
            raise
        return episode

    def solution(self, problem: Problem) -> Sequence[str] | None:
        if not self.shape.is_task:
            return None

        def turns() -> Sequence[str] | None:  # a generator's code runs here
            solution = self.first.solution(row_of(problem))
            return (solution,) if isinstance(solution, str) else solution and tuple(solution)

        return self.caller.call_in_time(f"{self.shape.name}.solution", turns)  # type: ignore[no-any-return]

    async def take_back(self, task: Any, calls: ObjectCalls) -> None:
        """Close the object of an ended episode, or keep it."""
        if self.shape.is_task:
            await calls.close(f"{self.shape.name}.close", task.close)
        elif calls.has_failed:
            await calls.close("", None)
        else:
            self.spare.append((task, calls))

    def _columns(self, problem: Problem, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that `reset` takes; UserError if one is missing or invalid."""
        reset = self.first.reset
        columns = arguments_for(reset, row)
        if not can_bind(reset, **columns):
            parameters = inspect.signature(reset).parameters.values()
            missing = next((p.name for p in parameters if p.default is p.empty and p.name not in columns), "")
            raise self._refused(problem, f"needs the column {missing!r}; the row has {', '.join(row) or 'none'}")
        for name in columns.keys() & self.shape.columns.keys():
            try:
                self.shape.columns[name].validate_python(columns[name])
            except Exception as error:  # a type of the user's own may raise anything
                value = repr(columns[name])[:MAX_SHOWN_CHARS]
                why = refusal(name, error) if isinstance(error, ValidationError) else f"{name}: {describe(error)}"
                raise self._refused(problem, f"cannot take {value} as column {why}") from None
        return columns

    def _refused(self, problem: Problem, why: str) -> UserError:
        return mistake_in(problem, f"{place_of_function(self.first.reset)}{self.shape.name}.reset {why}")


@asynccontextmanager
async def open_class(
    factory: Callable[..., Any], section: "EnvironmentSection", services: Services
) -> AsyncIterator[ClassEnvironment]:
    """`factory` is the class, or a function that makes an object of it."""
    caller = Caller.of(section)
    make = functools.partial(factory, **settings_of(factory, section, services))
    first, calls = await make_object(make, getattr(factory, "__name__", "factory"), caller)
    try:
        shape = read_shape(type(first), has_reward=section.reward is not None)
        if shape.is_task and not isinstance(first.system_text or "", str):
            raise UserError(f"{shape.name}.system_text must be a text, not a {type(first.system_text).__name__}")
    except UserError:
        await calls.close("", None)
        raise
    environment = ClassEnvironment(make, first, shape, caller, spare=[] if shape.is_task else [(first, calls)])
    try:
        yield environment
    finally:
        if shape.is_task:
            await environment.take_back(first, calls)
        for _, calls_of_spare in environment.spare:
            await calls_of_spare.close("", None)
