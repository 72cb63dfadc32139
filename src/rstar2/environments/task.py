"""`Task`: the base class of a task written as one class, each object of which is one episode."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rstar2.agent.parse import CLOSE, OPEN
from rstar2.engine.protocol import Message
from rstar2.environments.messages import prompt_of


class Task:
    """Derive your class from `Task`, and write the methods that your task needs. Every other method whose name does not
    begin with an underscore is a tool: its type hints are its schema, and the model reads its docstring.

    Settings of the recipe are keyword arguments of `__init__`, which also gets the run's `services` if it has a
    parameter of that name. `reset`, `reply`, `get_reward`, `close` and the tools may be async.
    """

    system_text: ClassVar[str] = ""
    """The system message. If empty, the recipe's or the model's is used."""
    is_over: bool = False
    """Set this in a tool to end the episode after the calls of the turn."""

    @staticmethod
    def rows(*_: Any, **settings: Any) -> Iterable[Mapping[str, Any]] | None:
        """The class's own tasks. The method gets the settings that it has parameters for. None: a data set must be
        given."""

    def prompt(self, row: Mapping[str, Any]) -> str | Sequence[Message]:
        """The user's first message, or all messages up to it. The method must be quick and depend only on the row: all
        episodes of a row share the result."""
        return prompt_of(row)  # type: ignore[no-any-return]

    def reset(self, *_: Any, **row: Any) -> Any:
        """Begin the episode. The method gets the columns of the row that it has parameters for. A returned text is
        appended to the user's message."""

    def reply(self, said: str) -> Any:
        """The user's answer to a turn without tool calls; `said` is the model's text without its thoughts. None ends
        the episode."""

    def get_reward(self, *trace: Any) -> Any:
        """The reward of the finished episode: a number, True or False, or a dict of named parts that are summed. The
        method gets the trace if it has a parameter for it."""
        raise NotImplementedError

    def solution(self, row: Mapping[str, Any]) -> str | Iterable[str] | None:
        """A perfect model's turns; `tool_call` writes a call. `rstar2 env validate` expects them to score 1."""

    def close(self) -> Any:
        """Clean up. Called once at the end of the episode, whatever happened in it."""


def tool_call(name: str, /, **arguments: Any) -> str:
    """A tool call as the model writes it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"
