"""`[environment.settings]` of the environment `harness`."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection


class HarnessSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    agent: str | None = None
    """A Python function, as file:PATH.py:NAME or package.module:NAME. It runs one episode and returns its result."""
    command: tuple[str, ...] | None = Field(None, min_length=1)
    """A program and its arguments, started once for each episode. Its output is its result."""
    env: dict[str, str] = {}
    """Environment variables of the command, in addition to those of this process."""
    rows: str | None = None
    """A Python function that yields the tasks, for data sets with `source = "environment"`."""
    max_at_once: int = Field(64, ge=1)
    """The maximum number of concurrent episodes of a process."""
    on_failure: Literal["fault", "score"] = "fault"
    """What a failed or hung program means. fault: the episode is left out and counted. score: the reward function
    scores it, with an empty answer."""

    @model_validator(mode="after")
    def _names_one_program(self) -> Self:
        if (self.agent is None) == (self.command is None):
            raise ValueError("give either agent (a Python function) or command (a program)")
        if self.agent is not None and self.env:
            raise ValueError("env is for a command; a function has the environment of this process")
        return self

    @classmethod
    def of(cls, section: "EnvironmentSection") -> Self:
        """Read the settings; UserError names an invalid one."""
        try:
            return cls.model_validate(section.settings)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(map(str, ("environment.settings", *first["loc"])))
            raise UserError(f"{field}: {first['msg'].removeprefix('Value error, ')}") from None
