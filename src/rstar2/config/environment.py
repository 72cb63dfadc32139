"""`[environment]` and `[environments.NAME]`: the task, its tools and its reward."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rstar2.config.section import EnvironmentName, Section
from rstar2.errors import UserError
from rstar2.extensions import ENVIRONMENTS, TOOLS


class McpServer(Section):
    """`[environment.mcp.NAME]`: an MCP server whose tools the model may call."""

    command: tuple[str, ...] | None = Field(
        None,
        strict=False,
        min_length=1,
        description="The program to start and its arguments; it speaks MCP over stdin and stdout. Give this or url.",
    )
    url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="The address of a running server (streamable HTTP). Give this or command.",
    )
    env: dict[str, str] = Field(
        {}, description="Environment variables of the command, beside PATH, HOME, USER and SHELL, which are passed on."
    )
    token_env: str | None = Field(
        None,
        min_length=1,
        description="Name of the environment variable that holds the bearer token of the server at url.",
    )
    tools: tuple[str, ...] | None = Field(
        None, strict=False, description="The tools that the model may call. If left out, all of the server's."
    )
    per_episode: bool = Field(
        False,
        description="Whether each episode gets a server (command) or a session (url) of its own. If not, all episodes "
        "of a process share one, which must then keep no state between calls.",
    )
    timeout_s: float = Field(60.0, gt=0, description="Seconds that one call, or the start of the server, may take.")

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either a command or a url")
        if self.url is not None and self.env:
            raise ValueError("env is for a server that is started by command; the one at url has its own")
        if self.command is not None and self.token_env is not None:
            raise ValueError("token_env is for a server at url; give secrets to a command in env")
        return self


class EnvironmentSection(Section):
    """`[environment]`: the task that the model is trained on or asked about."""

    source: EnvironmentName = Field(
        "math",
        description=f"The task. {ENVIRONMENTS.describe()} file:PATH.py:NAME and package.module:NAME are a class or a "
        "function of yours (see docs/environments.md).",
    )
    tools: tuple[str, ...] | None = Field(
        None,
        strict=False,
        description=f"The tools that the model may call beside the environment's own. {TOOLS.describe()} "
        "file:PATH.py:NAME and package.module:NAME are a function, a class or a factory of yours. An empty list means "
        "no tool. If left out, the task decides: math and code have "
        "execute_python_code_with_standard_io, the others only what they bring.",
    )
    mcp: dict[str, McpServer] = Field({}, description="MCP servers, whose tools the model may call as well, by name.")
    reward: str | None = Field(
        None,
        min_length=3,
        description="A function (row, trace) that returns the reward in place of the environment's own, as "
        "file:PATH.py:NAME or package.module:NAME. It may be async. It returns a number or named parts that are "
        "summed.",
    )
    settings: dict[str, Any] = Field(
        {}, description="Settings of the source; a class of yours gets them as keyword arguments."
    )
    deadline_s: float = Field(
        60.0,
        gt=0,
        description="Seconds that the environment's own code may take for one step: the start of an episode, a tool "
        "call, a reply or the reward. What is later is an infrastructure fault.",
    )
    on_error: Literal["skip", "stop"] = Field(
        "skip",
        description="What happens if the environment's own code fails. skip: the episode is left out and counted. "
        "stop: the run ends with an error that names the file and the line.",
    )

    @property
    def kind(self) -> str:
        """What comes before the first colon of the source: an entry of `ENVIRONMENTS`, `file`, or a module."""
        return self.source.partition(":")[0]

    def require_no_settings(self) -> None:
        """UserError if there are settings; for a source that takes none."""
        if self.settings:
            raise UserError(f"environment.settings: {self.source} has no setting {next(iter(self.settings))!r}")
