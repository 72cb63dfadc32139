"""`environment.reward`: a user's function that scores the episodes of any environment.

It is `(row, trace)`, or a reward function written for TRL, which takes lists with one entry for each episode:
`(completions, environments, answer, **kwargs)`.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rstar2.environments.code_places import place_of_function
from rstar2.environments.judgement import read_reward
from rstar2.environments.messages import as_messages, prompt_of, row_of
from rstar2.environments.protocol import Environment, Episode, Judgement
from rstar2.environments.signatures import arguments_for, can_bind
from rstar2.environments.user_code import Caller, load_object
from rstar2.environments.wrapped import WrappedEnvironment, WrappedEpisode
from rstar2.errors import UserError
from rstar2.records import Problem, Trace

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

_TRL_NAMES = ("prompts", "completions", "environments")


@dataclass(frozen=True, slots=True)
class RewardFunction:
    function: Callable[..., Any]
    caller: Caller
    is_trl: bool

    @classmethod
    def of(cls, function: Any, section: "EnvironmentSection") -> "RewardFunction":
        """Make it from a function; UserError unless the function accepts its arguments."""
        if not takes_row_and_trace(function) and not _is_trl(function):
            raise UserError(
                f"environment.reward: {place_of_function(function)}it must be a function (row, trace), or one that TRL "
                f"takes: ({', '.join(_TRL_NAMES)}, **kwargs)"
            )
        return cls(function, Caller.of(section), _is_trl(function))

    async def judge(self, row: Mapping[str, Any], trace: Trace, task: object | None) -> Judgement:
        """Score a trace. `task` is the episode's object, if a user's class made one."""
        what = f"reward {getattr(self.function, '__name__', self.function)}"
        row = copy.deepcopy(dict(row))
        if not self.is_trl:
            value = await self.caller.call(what, self.function, row, trace)
        else:
            values = await self.caller.call(what, self.function, **_trl_arguments(self.function, row, trace, task))
            if not isinstance(values, Sequence) or len(values) != 1:
                raise self.caller.fault(f"{what}: returned {str(values)[:80]!r}, not a list of one reward")
            value = values[0]
        return read_judgement(value, what, self.function, self.caller)


def read_judgement(value: Any, what: str, function: Callable[..., Any], caller: Caller) -> Judgement:
    """Read a function's return value; an invalid reward is a fault of the environment."""
    try:
        return read_reward(value)
    except ValueError as error:
        raise caller.fault(f"{what}: {place_of_function(function)}{error}") from None


def takes_row_and_trace(function: Any) -> bool:
    return callable(function) and can_bind(function, {}, None) and not _is_trl(function)


def _is_trl(function: Any) -> bool:
    return callable(function) and any(name in inspect.signature(function).parameters for name in _TRL_NAMES)


def _trl_arguments(
    function: Callable[..., Any], row: Mapping[str, Any], trace: Trace, task: object | None
) -> dict[str, Any]:
    offered: dict[str, Any] = {column: [value] for column, value in row.items() if column != "prompt"}
    offered["prompts"] = [[dict(message) for message in as_messages(prompt_of(row))]]
    offered["completions"] = [_completion(trace)]
    offered["completion_ids"] = [[token for turn in trace.turns for token in (*turn.token_ids, *turn.appended_ids)]]
    if task is not None:
        offered["environments"] = [task]
    return arguments_for(function, offered)


def _completion(trace: Trace) -> list[dict[str, str]]:
    """The conversation after the prompt."""
    messages = list[dict[str, str]]()
    for turn in trace.turns:
        messages.append({"role": "assistant", "content": turn.text})
        messages += [{"role": "tool", "content": result.text} for result in turn.results]
    return messages


@dataclass(frozen=True, slots=True)
class _RewardedEpisode(WrappedEpisode):
    row: Mapping[str, Any]
    reward: RewardFunction

    async def score(self, trace: Trace) -> Judgement:
        judgement = await self.reward.judge(self.row, trace, getattr(self.episode, "task", None))
        return judgement if trace.answer is None else replace(judgement, answer=judgement.answer or trace.answer)


@dataclass(frozen=True, slots=True)
class _RewardedEnvironment(WrappedEnvironment):
    reward: RewardFunction

    async def begin(self, problem: Problem, /) -> Episode:
        return _RewardedEpisode(await self.environment.begin(problem), row_of(problem), self.reward)


def load_reward(section: "EnvironmentSection") -> RewardFunction | None:
    """The function that `environment.reward` names. UserError if it cannot be loaded."""
    if section.reward is None:
        return None
    function = load_object(section.reward, "environment.reward")
    return RewardFunction.of(function, section)


def with_reward(environment: Environment, reward: RewardFunction | None) -> Environment:
    """The environment, scored by the function if there is one. A function for TRL reads the objects of a class, so this
    wrapper must be the innermost."""
    return environment if reward is None else _RewardedEnvironment(environment, reward)
