"""The configuration of the model that a recipe names: from its folder, from the sizes bundled here, or from the hub.

The bundled sizes come before the hub: they are the same numbers, and a laptop in a train has no hub.
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
from rstar2.models.hub_client import HUB_ANSWER_DEADLINE_S, answer_within
from rstar2.models.tiny import intermediate_size
from rstar2.plan.bundled_configs import BUNDLED


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
