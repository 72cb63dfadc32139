"""Opens the model that a recipe names: its engine, on this machine or behind a server, and its chat format.

Training does not come this way: its engine runs on the weights that it trains.
"""

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.agent import ChatFormat, chat_of
from rstar2.config import Recipe
from rstar2.engine import Engine
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.environments.executor import secret
from rstar2.errors import UserError
from rstar2.extensions import ENGINES
from rstar2.models import resolve

if TYPE_CHECKING:
    from rstar2.engine.embedded.weights import Weights

DEFAULT_MODEL = "smollm2-135m-agent"
UNNAMED = "auto"
"""The value of `model.name` that names no model: a server's only one is used, none with a script, else
`DEFAULT_MODEL`."""
_OPTIONS = {
    "kv_cache_tokens": "kv_cache_tokens",
    "gpu_memory_share": "gpu_memory_share",
    "max_batch": "max_running",
    "prefill_chunk_tokens": "max_prefill_tokens",
    "batch_invariant": "batch_invariant",
}
"""For each field of `[engine]`, the name of the engine's own option."""


@dataclass(frozen=True, slots=True)
class OpenedModel:
    engine: Engine
    chat: ChatFormat
    name: str
    folder: Path | None = None
    """The folder of the model or of its tokenizer, where it is known."""
    context_tokens: int | None = None
    """The longest sequence that the model takes; None unless this process runs it."""


async def open_model(recipe: Recipe) -> OpenedModel:
    """The model that the recipe names, on the engine that it names. The caller closes the engine.

    An engine is a function of the table `ENGINES`: from a recipe to an opened model. A field of `[engine]` that is not
    given leaves the choice to the engine, which knows its device."""
    opened: OpenedModel = await ENGINES.load(recipe.engine.kind)(recipe)
    return opened


async def open_embedded(recipe: Recipe, *, apart: bool = False) -> OpenedModel:
    """`apart`: on a GPU the engine gets a process of its own, so that it does not wait for the interpreter of a busy
    event loop in this one, and is ready for every batch size before its first request."""
    name, folder = _local_model(recipe)
    # In threads, so that a sandbox can start meanwhile; reading weights leaves the interpreter to the tokenizer.
    opening = asyncio.create_task(_embedded(recipe, folder, apart=apart), name="open the engine")
    try:
        chat = await asyncio.to_thread(chat_of, recipe, folder)
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            await (await opening).close()
        raise
    return OpenedModel(await opening, chat, name, folder, _context_tokens(recipe, folder))


async def open_vllm(recipe: Recipe) -> OpenedModel:
    """Opens a model on the vLLM server at `base_url`, or without one on vLLM in this process."""
    if recipe.engine.base_url is not None:
        return await _vllm_server(recipe, recipe.engine.base_url)
    name, folder = _local_model(recipe)
    chat = await asyncio.to_thread(chat_of, recipe, folder)
    # vLLM wants the event loop's own thread.
    return OpenedModel(_vllm_in_process(recipe, folder), chat, name, folder, _context_tokens(recipe, folder))


def _local_model(recipe: Recipe) -> tuple[str, Path]:
    name = DEFAULT_MODEL if recipe.model.name == UNNAMED else recipe.model.name
    return name, resolve(name)


def _plain_chat(recipe: Recipe) -> ChatFormat:
    """The chat format of a model whose tokenizer is not known: its server applies its own."""
    text = recipe.agent.system_text
    return ChatFormat.of(PlainTextTokenizer()) if text is None else ChatFormat.of(PlainTextTokenizer(), text)


def _context_tokens(recipe: Recipe, folder: Path) -> int | None:
    """The context length: the model's own or the recipe's, whichever is shorter. A recipe's default does not count."""
    try:
        own = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (ValueError, AttributeError):
        own = None  # loading the weights will say what is wrong with the file
    given = recipe.model.context_tokens if "context_tokens" in recipe.model.model_fields_set else None
    return min((tokens for tokens in (own, given) if isinstance(tokens, int)), default=None)


def _options(recipe: Recipe, folder: Path) -> dict[str, Any]:
    engine, given = recipe.engine, recipe.engine.model_fields_set
    options = {theirs: getattr(engine, ours) for ours, theirs in _OPTIONS.items() if ours in given}
    if "context_tokens" in recipe.model.model_fields_set:
        options["max_context_tokens"] = _context_tokens(recipe, folder)
    return {"seed": recipe.seed, **options}


async def _embedded(recipe: Recipe, folder: Path, *, apart: bool) -> Engine:
    weights = await asyncio.to_thread(_weights, recipe, folder)
    from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
    from rstar2.engine.process.shared import SharedEngine

    options = EmbeddedOptions(starts_early=True, records_at_start=apart, **_options(recipe, folder))
    if apart and weights.device.type == "cuda":
        return await SharedEngine.start(weights, options)
    return await asyncio.to_thread(EmbeddedEngine, weights, options)


def _weights(recipe: Recipe, folder: Path) -> "Weights":
    try:
        import torch

        from rstar2.engine.embedded.options import choose_device
        from rstar2.engine.embedded.read_weights import read_weights
        from rstar2.engine.embedded.weights import load_model, share_weights
    except ImportError as error:
        raise UserError(f"the embedded engine needs {error.name}: run `pip install 'rstar2[train]'`") from None
    device = choose_device(recipe.model.device)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    dtype = dtypes.get(recipe.model.dtype) or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    return read_weights(folder, device, dtype) or share_weights(load_model(folder, device, dtype))


def _vllm_in_process(recipe: Recipe, folder: Path) -> Engine:
    from rstar2.engine.vllm import VllmInProcessEngine, VllmOptions

    # Standard output is for the solution, and vLLM would log there.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    return VllmInProcessEngine.from_folder(folder, VllmOptions(**_options(recipe, folder)))


async def open_scripted(recipe: Recipe) -> OpenedModel:
    from rstar2.engine.scripted import ScriptedEngine, read_script

    assert recipe.engine.script is not None
    script = Path(recipe.engine.script)
    policy = read_script(script)
    folder = None if recipe.model.name == UNNAMED else resolve(recipe.model.name)
    chat = _plain_chat(recipe) if folder is None else chat_of(recipe, folder)
    return OpenedModel(ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id), chat, script.name, folder)


async def open_openai(recipe: Recipe) -> OpenedModel:
    from rstar2.engine.openai import OpenAIEngine, offered_models
    from rstar2.engine.openai_wire import TextWire, TokenWire

    base_url, key = recipe.engine.base_url, _api_key(recipe)
    assert base_url is not None
    model = recipe.model.name
    if model == UNNAMED:
        model = _only_one(await offered_models(base_url, key), base_url)
    if recipe.engine.tokenizer is None:
        return OpenedModel(OpenAIEngine(base_url, model, TextWire(), key), _plain_chat(recipe), model)
    folder = Path(recipe.engine.tokenizer)
    chat = chat_of(recipe, folder)
    return OpenedModel(OpenAIEngine(base_url, model, TokenWire(), key), chat, model, folder)


async def _vllm_server(recipe: Recipe, base_url: str) -> OpenedModel:
    from rstar2.engine.openai import offered_models
    from rstar2.engine.vllm import VllmServerEngine, root_of

    key = _api_key(recipe)
    model = recipe.model.name
    if model == UNNAMED:
        model = _only_one(await offered_models(f"{root_of(base_url)}/v1", key), base_url)
    folder = _folder_of(model) if recipe.engine.tokenizer is None else Path(recipe.engine.tokenizer)
    chat = chat_of(recipe, folder)
    return OpenedModel(await VllmServerEngine.connect(base_url, model, key), chat, model, folder)


def _folder_of(model: str) -> Path:
    """The folder of a vLLM server's model. vLLM names a model after its folder, unless it was given another name."""
    try:
        return resolve(model)
    except UserError as error:
        raise UserError(f"--tokenizer is needed, the folder of the server's model: {error}") from None


def _api_key(recipe: Recipe) -> str | None:
    variable = recipe.engine.api_key_env
    return None if variable is None else secret("--api-key-env", variable)


def _only_one(models: list[str], base_url: str) -> str:
    if len(models) == 1:
        return models[0]
    choice = f"it has {', '.join(models[:10])}" if models else "it does not say which it has"
    raise UserError(f"--model is needed: which of the models of {base_url}? ({choice})")
