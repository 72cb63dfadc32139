"""The options that `solve` and `chat` share: who makes the tokens, which tools there are, what the limits are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

DEFAULT_MODEL = "smollm2-135m"

Model = Annotated[
    str | None,
    typer.Option(
        help=f"A model folder, a name that `rstar2 models list` shows ({DEFAULT_MODEL} if left out), or, with "
        "--base-url, one of the server's models.",
        show_default=False,
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible server, with its /v1, instead of the embedded engine.")
]
ApiKeyEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable that holds the server's key.")
]
TokenizerFolder = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FOLDER",
        help="The tokenizer of the server's model: prompts and answers are then token ids, as vLLM has them, and the "
        "trace is exact.",
    ),
]
Script = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Replies from a text file, one a turn, separated by lines of `===`: no model."),
]
Template = Annotated[
    Literal["model", "qwen"], typer.Option(help="The model's own chat template, or Qwen's for models without one.")
]
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        metavar="TOOL",
        help="execute_python_code_with_standard_io (the default), jupyter_code, or FILE.py whose make_tool() returns "
        "one. May be repeated.",
        show_default=False,
    ),
]
SandboxUrl = Annotated[
    str | None, typer.Option("--sandbox", metavar="URL", help="A running `rstar2 sandbox serve`, not this machine.")
]
SandboxToken = Annotated[str | None, typer.Option(envvar="RSTAR2_SANDBOX_TOKEN", help="The sandbox service's token.")]
MaxTurns = Annotated[int, typer.Option(min=1, help="Turns in which the model may call tools.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of the whole response, tool results included.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable, where the engine allows it.")]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    model: str | None
    base_url: str | None
    api_key_env: str | None
    tokenizer: Path | None
    script: Path | None
    template: Literal["model", "qwen"]
    tools: tuple[str, ...]
    sandbox: str | None
    sandbox_token: str | None
    max_turns: int
    max_tokens: int
    temperature: float
    seed: int | None
