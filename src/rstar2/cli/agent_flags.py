"""The options of every verb that asks a model: what they change of a recipe, and the recipe that comes out.

A recipe says everything about model, engine, agent and sandbox. `--recipe` reads one, `--set` changes a field of it,
and the other options are short names for its fields.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rstar2.cli.flag_groups import in_panel
from rstar2.cli.sandbox.service_token import TOKEN_ENV
from rstar2.errors import UserError
from rstar2.extensions import ENGINES, ENVIRONMENTS, TOOLS

if TYPE_CHECKING:
    from rstar2.config import Recipe

_model, _agent, _limits = map(in_panel, ("Model and engine", "Agent and sandbox", "Limits and sampling"))
BRIEF = {"max_turns": 10, "max_response_tokens": 4096}
"""`[eval]` where one problem is asked, unless a recipe says otherwise. An evaluation has the report's."""
_ASKED = {
    "name",
    "seed",
    "model",
    "sandbox",
    "engine",
    "agent",
    "environment",
    "environments",
    "rollout",
    "eval",
    "data",
}
"""The parts of a recipe that concern a model which is only asked."""
_FIELDS = {
    "model": "model.name",
    "engine": "engine.kind",
    "base_url": "engine.base_url",
    "api_key_env": "engine.api_key_env",
    "tokenizer": "engine.tokenizer",
    "script": "engine.script",
    "template": "agent.template",
    "environment": "environment.source",
    "tools": "environment.tools",
    "sandbox": "sandbox.base_url",
    "max_turns": "eval.max_turns",
    "max_tokens": "eval.max_response_tokens",
    "temperature": "eval.temperature",
    "samples": "eval.num_samples",
    "seed": "seed",
}
"""The field of a recipe that each option sets."""
_SHORT_FLAGS = {"environment": "--env", "tools": "--tool"}
"""The options that are not named as their field here."""


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """Which model, and where its tokens are made."""

    recipe: Annotated[
        Path | None,
        _model(metavar="FILE|RUN", help="A recipe, or a training run: its recipe and its final model."),
    ] = None
    overrides: Annotated[
        list[str] | None, _model("--set", metavar="KEY=VALUE", help="Override a field of the recipe; may be repeated.")
    ] = None
    engine: Annotated[
        str | None,
        _model(
            metavar="KIND",
            help=f"{', '.join(ENGINES)} or package.module:name. By default embedded; openai with --base-url, scripted "
            "with --script.",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        _model(metavar="URL", help="A server with its /v1: OpenAI-compatible, or a vLLM with --engine vllm."),
    ] = None
    api_key_env: Annotated[
        str | None, _model(metavar="NAME", help="Environment variable that holds the server's key.")
    ] = None
    script: Annotated[
        Path | None, _model(metavar="FILE", help="Replies from a text file, separated by lines of `===`: no model.")
    ] = None
    num_threads: Annotated[
        int | None,
        _model("--threads", metavar="N", min=1, help="CPU threads of the embedded engine; by default all cores."),
    ] = None
    template: Annotated[
        Literal["model", "qwen"] | None,
        _agent(metavar="NAME", help="model: the model's own chat template. qwen: Qwen's, for models without one."),
    ] = None


@dataclass(frozen=True, slots=True)
class AskFlags(ModelFlags):
    """What `serve` and `view` have as well, for the agent that they run."""

    sandbox: Annotated[
        str | None, _agent(metavar="URL", help="A running `rstar2 sandbox serve`, instead of this machine.")
    ] = None
    environment: Annotated[
        str | None,
        _agent(
            "--env",
            metavar="SOURCE",
            help=f"The task: {', '.join(ENVIRONMENTS)}, file:PATH.py:NAME or package.module:NAME. By default the one "
            "that the model was trained on.",
        ),
    ] = None
    tools: Annotated[
        list[str] | None,
        _agent(
            "--tool",
            metavar="TOOL",
            help=f"{', '.join(TOOLS)}, file:PATH.py:NAME, package.module:NAME, FILE.py whose make_tool() returns a "
            "tool, or none; may be repeated. By default those that the model was trained with.",
        ),
    ] = None
    max_turns: Annotated[int | None, _limits(metavar="N", min=1, help="Turns in which the model may call tools.")] = (
        None
    )
    max_tokens: Annotated[
        int | None, _limits(metavar="N", min=16, help="Tokens of the response, tool results included.")
    ] = None
    temperature: Annotated[
        float | None, _limits(metavar="T", min=0.0, help="Sampling temperature; 0 is greedy. By default 0.6.")
    ] = None
    seed: Annotated[int | None, _limits(metavar="N", min=0, help="Makes sampling repeatable.")] = None


@dataclass(frozen=True, slots=True)
class AgentFlags(AskFlags):
    model: Annotated[
        str | None,
        _model(
            metavar="NAME",
            help="A model folder, or a name of `rstar2 models list`; by default the agent that comes with rstar2. With "
            "--base-url one of the server's models.",
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        _model(metavar="FOLDER", help="Tokenizer of the server's model: traces are then exact in tokens."),
    ] = None


def asked_recipe(flags: ModelFlags, defaults: dict[str, Any] | None = None, **more: Any) -> "Recipe":
    """The recipe of --recipe, or one of defaults, with `flags` and `more` over it. `more` are options by their names.

    `defaults` are those of `[eval]` where there is no --recipe."""
    from rstar2.config.mistakes import validated
    from rstar2.rollout.engines import UNNAMED

    given = {name: getattr(flags, name, None) for name in _FIELDS} | more
    is_model_given = given["model"] is not None or given["base_url"] is not None
    if flags.recipe is None:
        tree = _of_defaults(flags, defaults or {})
    else:
        tree = _of_file(flags.recipe, flags.overrides or [], is_model_given=is_model_given)
    _choose_engine(tree, given)
    if given["base_url"] is not None and given["model"] is None:
        tree["model"]["name"] = UNNAMED  # the name in the file is not one of that server's
    use_service(tree, given.pop("sandbox"))
    given["tools"] = tool_names(given["tools"])
    for name, value in given.items():
        if value is not None and value != []:
            _put(tree, _FIELDS[name], str(value) if isinstance(value, Path) else value)
    recipe, mistakes = validated(tree)
    if recipe is None:
        raise UserError("\n".join(_in_flags(mistake.sentence) for mistake in mistakes))
    return recipe


def tool_names(given: list[str] | None) -> tuple[str, ...] | None:
    """What --tool names, as a recipe names it."""
    from rstar2.environments.tools import FACTORY_NAME

    if not given:
        return None
    if "none" in given:
        if len(given) > 1:
            raise UserError("--tool none excludes other tools: leave one of them out")
        return ()
    return tuple(f"file:{name}:{FACTORY_NAME}" if name.endswith(".py") else name for name in given)


def use_service(tree: dict[str, Any], address: str | None) -> None:
    """Over what a recipe says of the sandbox: the service at this address runs the programs."""
    if address is None:
        return
    section = tree.setdefault("sandbox", {})
    section["base_url"] = address
    for key in ("num_slots", "token_env", "packages"):
        section.pop(key, None)
    if os.environ.get(TOKEN_ENV):
        section["token_env"] = TOKEN_ENV


def _of_defaults(flags: ModelFlags, eval_section: dict[str, Any]) -> dict[str, Any]:
    from rstar2.config import parse_recipe
    from rstar2.rollout.engines import UNNAMED

    lines = [f"{key} = {value}" for key, value in eval_section.items()]
    text = "\n".join(['name = "asked"', "[model]", f'name = "{UNNAMED}"', "[eval]", *lines])
    return parse_recipe(text, flags.overrides or (), file="the defaults").model_dump(exclude_unset=True)


def _of_file(path: Path, overrides: list[str], *, is_model_given: bool) -> dict[str, Any]:
    from rstar2.config import load_recipe
    from rstar2.records.run_layout import RunLayout

    run = _run_of(path)
    recipe = load_recipe(path if run is None else RunLayout(run).recipe, overrides)
    tree = recipe.model_dump(include=_ASKED, exclude_unset=True)
    is_model_given = is_model_given or any(override.partition("=")[0].strip() == "model.name" for override in overrides)
    if run is not None and not is_model_given:
        tree["model"]["name"] = str(_final_model(run))
    for key in ("tiny", "lora"):
        tree["model"].pop(key, None)
    for name in recipe.sft.data if recipe.sft is not None else ():
        tree["data"].pop(name, None)  # conversations of the warm-up hold no problems
    return tree


def _final_model(run: Path) -> Path:
    folder = run / "final"
    if not folder.is_dir():
        raise UserError(
            f"--recipe: {run} has no final model: let `rstar2 train --resume {run}` end, or make one of a checkpoint "
            "with `rstar2 export` and give it as --model"
        )
    return folder


def _run_of(path: Path) -> Path | None:
    """The training run that a path means: its folder, or the recipe in it."""
    from rstar2.records import RunView
    from rstar2.records.run_layout import RunLayout

    run = path if path.is_dir() else path.parent if path.name == RunLayout(path).recipe.name else None
    if run is None or (run != path and not RunLayout(run).info.is_file()):
        return None
    verb = RunView(run).info.verb
    if verb != "train":
        raise UserError(f"--recipe: {run} holds a run of `rstar2 {verb}`; name one of `rstar2 train`, or a recipe")
    return run


def _choose_engine(tree: dict[str, Any], given: dict[str, Any]) -> None:
    """--script and --base-url choose the engine where --engine does not."""
    if given["engine"] is not None:
        return
    if given["script"] is not None:
        given["engine"] = "scripted"
    elif given["base_url"] is not None and tree.get("engine", {}).get("kind") != "vllm":
        given["engine"] = "openai"


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.rpartition(".")
    (tree.setdefault(section, {}) if section else tree)[name] = value


def _in_flags(sentence: str) -> str:
    """The sentence with options in place of fields: the recipe's file was checked before, so an option is wrong."""
    for name, key in _FIELDS.items():
        flag = _SHORT_FLAGS.get(name, "--" + name.replace("_", "-"))
        sentence = sentence.replace(key, flag) if "." in key else sentence
    return sentence
