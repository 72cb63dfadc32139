"""`Task`: the base class of a task that is written as one class, of which one object is one episode."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from rstar2.agent.parse import CLOSE, OPEN
from rstar2.engine.protocol import Message
from rstar2.environments.messages import prompt_of


class Task:
    """Derive from it, and write the methods that your task needs. Every other method of yours whose name does not begin
    with an underscore is a tool: its type hints are its schema, and the model reads its docstring.

    Settings of the recipe are keyword arguments of `__init__`, which also gets the run's `services` if it has a
    parameter of that name. `reset`, `reply`, `get_reward`, `close` and the tools may be async.
    """

    system_text: ClassVar[str] = ""
    """The system message. If it is empty, the recipe's or the model's is used."""
    is_over: bool = False
    """Set it in a tool to end the episode after the calls of the turn."""

    @staticmethod
    def rows(*_: Any, **settings: Any) -> Iterable[Mapping[str, Any]] | None:
        """The tasks that the class brings itself. It gets those settings that it has a parameter for. None: a data set
        must be given."""

    def prompt(self, row: Mapping[str, Any]) -> str | Sequence[Message]:
        """The user's first message, or all messages up to it. It must be quick and depend on nothing but the row: all
        episodes of a row share it."""
        return prompt_of(row)  # type: ignore[no-any-return]

    def reset(self, *_: Any, **row: Any) -> Any:
        """Begins the episode. It gets the columns of the row that it has parameters for. A text that it returns is
        appended to the user's message."""

    def reply(self, said: str) -> Any:
        """What the user answers to a turn that calls no tool; `said` is the model's text without
        its thoughts. None ends the episode."""

    def get_reward(self, *trace: Any) -> Any:
        """The reward of the finished episode: a number, True or False, or a dict of named parts that are summed. It
        gets the trace if it has a parameter for it."""
        raise NotImplementedError

    def solution(self, row: Mapping[str, Any]) -> str | Iterable[str] | None:
        """What a perfect model would write, turn by turn; `tool_call` writes a call. `rstar2 env validate` expects it
        to score 1."""

    def close(self) -> Any:
        """Called once at the end of the episode, whatever happened in it."""


def tool_call(name: str, /, **arguments: Any) -> str:
    """A call as the model writes it."""
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CLOSE}"
