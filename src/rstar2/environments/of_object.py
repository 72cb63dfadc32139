"""Makes the source of an environment from an object in a user's file or module."""

import functools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rstar2.environments.class_environment import open_class
from rstar2.environments.class_shape import brings_rows, is_task_class, read_shape, rows_of, settings_of
from rstar2.environments.messages import opening_messages, prompt_of, row_of, without_prompt
from rstar2.environments.plain_episode import PlainEpisode
from rstar2.environments.protocol import Judgement, Opening, Services
from rstar2.environments.reward import RewardFunction, takes_row_and_trace
from rstar2.environments.signatures import can_bind
from rstar2.environments.source import EnvironmentSource, Rows
from rstar2.environments.user_code import mistakes_named
from rstar2.errors import UserError
from rstar2.records import Problem, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

NUM_NUMBERED_ROWS = 1000
"""The number of rows for a class for TRL, whose `reset()` draws its own task: a row holds only a number."""


def source_of_object(found: Any, section: "EnvironmentSection") -> EnvironmentSource:
    """Accepts a class, a function without parameters that makes an object of one, a reward function `(row, trace)`, or
    an `EnvironmentSource`. UserError says what the object lacks, or what is accepted."""
    if isinstance(found, EnvironmentSource):
        return found
    if isinstance(found, type):
        with mistakes_named("environment.source"):
            read_shape(found, section.reward is not None)
        settings_of(found, section, None)
        return EnvironmentSource(_opening_class(found), _rows(found), opens_at_once=True)
    if takes_row_and_trace(found):
        return EnvironmentSource(_opening_function(found), opens_at_once=True)
    if callable(found) and can_bind(found, **section.settings):
        return EnvironmentSource(_opening_class(found), _numbered_rows, opens_at_once=True)
    raise UserError(
        f"environment.source: {section.source} is a {type(found).__name__}; it must be a class derived from "
        "rstar2.environments.Task, a class that TRL's environment_factory takes, a reward function (row, trace), or an "
        "EnvironmentSource"
    )


def _rows(cls: type) -> Rows | None:
    if not is_task_class(cls):
        return _numbered_rows
    return functools.partial(rows_of, cls) if brings_rows(cls) else None


def _numbered_rows(_section: "EnvironmentSection") -> Iterable[Mapping[str, Any]]:
    return ({"episode": number} for number in range(NUM_NUMBERED_ROWS))


def _opening_class(factory: Callable[..., Any]) -> Any:
    return functools.partial(open_class, factory)


def _opening_function(function: Callable[..., Any]) -> Any:
    @asynccontextmanager
    async def open_function(section: "EnvironmentSection", _services: Services) -> AsyncIterator[FunctionEnvironment]:
        section.require_no_settings()
        yield FunctionEnvironment(RewardFunction.of(function, section))

    return open_function


@dataclass(frozen=True, slots=True)
class FunctionEnvironment:
    """Satisfies `Environment` with the row's prompt, no tools of its own, and a reward function."""

    reward: RewardFunction
    scores_truncated: bool = True

    def opening(self, problem: Problem) -> Opening:
        prompt = prompt_of(row_of(problem))
        if not prompt:
            raise without_prompt(problem)
        return Opening(opening_messages(problem, prompt))

    async def begin(self, problem: Problem) -> PlainEpisode:
        async def judge(trace: Trace) -> Judgement:
            return await self.reward.judge(row_of(problem), trace, None)

        return PlainEpisode(judge)

    def solution(self, _problem: Problem) -> Sequence[str] | None:
        return None
