"""The configuration of the model that a recipe names: from its folder, from the sizes bundled here, or from the hub.

The bundled sizes are what each model's own config.json says, as far as memory and time depend on it. They come before
the hub, so that a plan needs neither weights nor a network.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.config import Recipe
from rstar2.config.model import TINY_PREFIX
from rstar2.errors import InfrastructureError, UserError
from rstar2.models import CATALOG, resolve
from rstar2.models.catalog import suggestion
from rstar2.models.hub import HUB_ANSWER_DEADLINE_S, answer_within
from rstar2.models.tiny import intermediate_size


def _qwen3(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, is_tied: bool, context_tokens: int
) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": context_tokens,
    }


def _qwen2(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, num_kv_heads: int, is_tied: bool
) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        # The untied ones pad their vocabulary to a rounder number.
        "vocab_size": 151_936 if is_tied else 152_064,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": 32_768,
    }


def _smollm2(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, num_kv_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }


BUNDLED: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 2560, 32, 15, 5),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(2048, 8192, 24, 32, 32),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2, True),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2, True),
    "Qwen/Qwen2.5-Coder-7B-Instruct": _qwen2(3584, 18_944, 28, 28, 4, False),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, True, 40_960),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, True, 40_960),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, True, 40_960),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, False, 40_960),
    "Qwen/Qwen3-14B": _qwen3(5120, 17_408, 40, 40, False, 40_960),
    "Qwen/Qwen3-14B-Base": _qwen3(5120, 17_408, 40, 40, False, 32_768),
    "Qwen/Qwen3-32B": _qwen3(5120, 25_600, 64, 64, False, 40_960),
}
"""By repository on the hub."""


@dataclass(frozen=True, slots=True)
class FoundConfig:
    values: dict[str, Any]
    """As in a config.json."""
    origin: str
    """Where it is from, for the plan's notes."""


def find_config(recipe: Recipe) -> FoundConfig:
    if recipe.model.tiny is not None:
        return FoundConfig(_tiny(recipe), "[model.tiny]")
    name = recipe.model.name
    folder = _local_folder(name)
    if folder is not None:
        return FoundConfig(json.loads((folder / "config.json").read_text(encoding="utf-8")), "the model's folder")
    repo, _, revision = (CATALOG[name].repo if name in CATALOG else name).partition("@")
    if repo in BUNDLED:
        return FoundConfig(BUNDLED[repo], "the sizes bundled with rstar2")
    if repo.count("/") != 1 or name.startswith((".", "/", "~")):
        raise UserError(f"model.name: {name!r} is neither a model folder nor a name in the catalog{suggestion(name)}")
    return FoundConfig(_from_hub(repo, revision or None), "the Hugging Face hub")


def _local_folder(name: str) -> Path | None:
    try:
        return resolve(name)
    except UserError:
        return None


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
    return {
        "model_type": recipe.model.name.removeprefix(TINY_PREFIX),
        "vocab_size": tiny.vocab_size,
        "hidden_size": tiny.hidden_size,
        "intermediate_size": intermediate_size(tiny.hidden_size),
        "num_hidden_layers": tiny.num_layers,
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": tiny.num_kv_heads,
        "head_dim": tiny.hidden_size // tiny.num_heads,
        "tie_word_embeddings": True,
        "max_position_embeddings": recipe.model.context_tokens,
    }
