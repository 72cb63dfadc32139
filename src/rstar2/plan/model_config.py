"""Finds the configuration of the model that a recipe names: in its folder, in the sizes bundled here, or on the hub.

The bundled sizes are those of each model's own config.json, as far as memory and time depend on them. They come before
the hub, so that a plan needs neither weights nor a network.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rstar2.config import Recipe
from rstar2.config.model import TINY_PREFIX
from rstar2.errors import InfrastructureError, UserError
from rstar2.models import CATALOG, resolve
from rstar2.models.catalog import suggestion
from rstar2.models.hub import HUB_ANSWER_DEADLINE_S, answer_within
from rstar2.models.tiny import intermediate_size


def _sizes(
    model_type: str,
    vocab_size: int,
    context_tokens: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    *,
    is_tied: bool = True,
    head_dim: int | None = None,
) -> dict[str, Any]:
    """The values of a config.json with these sizes."""
    values = {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": context_tokens,
    }
    return values if head_dim is None else values | {"head_dim": head_dim}


_smollm2 = partial(_sizes, "llama", 49_152, 8192)
_qwen2 = partial(_sizes, "qwen2", 151_936, 32_768)
_qwen3 = partial(_sizes, "qwen3", 151_936, 40_960, head_dim=128)

BUNDLED: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 2560, 32, 15, 5),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(2048, 8192, 24, 32, 32),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2),
    # The untied ones pad their vocabulary to a rounder number.
    "Qwen/Qwen2.5-Coder-7B-Instruct": _sizes("qwen2", 152_064, 32_768, 3584, 18_944, 28, 28, 4, is_tied=False),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, 8),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, 8),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, 8, is_tied=False),
    "Qwen/Qwen3-14B": _qwen3(5120, 17_408, 40, 40, 8, is_tied=False),
    "Qwen/Qwen3-14B-Base": _qwen3(5120, 17_408, 40, 40, 8, is_tied=False) | {"max_position_embeddings": 32_768},
    "Qwen/Qwen3-32B": _qwen3(5120, 25_600, 64, 64, 8, is_tied=False),
}
"""The bundled sizes by repository on the hub."""


@dataclass(frozen=True, slots=True)
class FoundConfig:
    values: dict[str, Any]
    """The values, named as in a config.json."""
    origin: str
    """The source of the values, for the plan's notes."""


def find_config(recipe: Recipe) -> FoundConfig:
    if recipe.model.tiny is not None:
        return FoundConfig(_tiny(recipe), "[model.tiny]")
    name = recipe.model.name
    with suppress(UserError):
        config = (resolve(name) / "config.json").read_text(encoding="utf-8")
        return FoundConfig(json.loads(config), "the model's folder")
    repo, _, revision = (CATALOG[name].repo if name in CATALOG else name).partition("@")
    if repo in BUNDLED:
        return FoundConfig(BUNDLED[repo], "the sizes bundled with rstar2")
    if repo.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"model.name: {name!r} is neither a model folder nor a name in the catalog{suggestion(name)}")
    return FoundConfig(_from_hub(repo, revision or None), "the Hugging Face hub")


def _from_hub(repo: str, revision: str | None) -> dict[str, Any]:
    from huggingface_hub import hf_hub_download

    try:
        file = answer_within(HUB_ANSWER_DEADLINE_S, lambda: hf_hub_download(repo, "config.json", revision=revision))
    except InfrastructureError as error:
        raise UserError(
            f"model.name: the sizes of {repo} are not bundled, and the hub does not give them ({error}); name a local "
            f"folder that holds its config.json, or one of {', '.join(BUNDLED)}"
        ) from error
    values: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    return values


def _tiny(recipe: Recipe) -> dict[str, Any]:
    tiny = recipe.model.tiny
    assert tiny is not None
    return _sizes(
        recipe.model.name.removeprefix(TINY_PREFIX),
        tiny.vocab_size,
        recipe.model.context_tokens,
        tiny.hidden_size,
        intermediate_size(tiny.hidden_size),
        tiny.num_layers,
        tiny.num_heads,
        tiny.num_kv_heads,
        head_dim=tiny.hidden_size // tiny.num_heads,
    )
