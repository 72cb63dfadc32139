"""The options that `solve` and `chat` share: who makes the tokens, which tools there are, what the limits are."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

DEFAULT_MODEL = "smollm2-135m-agent"

EngineKind = Literal["embedded", "vllm", "openai", "scripted"]

Engine = Annotated[
    EngineKind | None,
    typer.Option(
        help="Who makes the tokens. Left out: scripted with --script, openai with --base-url, else embedded. vllm is a "
        "running `vllm serve` with --base-url, and without it vLLM in this process.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help=f"A model folder, a name that `rstar2 models list` shows ({DEFAULT_MODEL} if left out), or, with "
        "--base-url, one of the server's models.",
        show_default=False,
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible server or a vLLM, with its /v1, instead of a model of our own.")
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
        "trace is exact. With --engine vllm it is needed only if the server's model is no folder of this machine.",
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
        help="execute_python_code_with_standard_io, jupyter_code, or FILE.py whose make_tool() returns one; may be "
        "repeated. Left out: the tool that the model was trained with, else the first of these.",
        show_default=False,
    ),
]
SandboxUrl = Annotated[
    str | None, typer.Option("--sandbox", metavar="URL", help="A running `rstar2 sandbox serve`, not this machine.")
]
MaxTurns = Annotated[int, typer.Option(min=1, help="Turns in which the model may call tools.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of the whole response, tool results included.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable, where the engine allows it.")]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    engine: EngineKind | None
    model: str | None
    base_url: str | None
    api_key_env: str | None
    tokenizer: Path | None
    script: Path | None
    template: Literal["model", "qwen"]
    tools: tuple[str, ...]
    sandbox: str | None
    max_turns: int
    max_tokens: int
    temperature: float
    seed: int | None
