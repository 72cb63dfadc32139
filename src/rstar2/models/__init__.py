"""Language models on disk: which ones are known by name, how they are downloaded, where they are kept.

Promise: a model folder is either absent, or complete and verified when it was written; it is a plain Hugging Face
folder, so every engine can read it. `resolve` and the catalog need nothing but the standard library; getting a model
needs the `train` extra.
May import: nothing.
"""

from rstar2.models.agents import AGENTS, AgentEntry
from rstar2.models.card import ModelCard, ModelSource, Verification, read_card
from rstar2.models.catalog import CATALOG, CatalogEntry, find_entry
from rstar2.models.get import GetResult, get_model
from rstar2.models.home import data_home, model_folder
from rstar2.models.resolve import AdaptedLayer, read_adapter, resolve
from rstar2.models.tiny import TinySizes, build_tiny

__all__ = [
    "AGENTS",
    "CATALOG",
    "AdaptedLayer",
    "AgentEntry",
    "CatalogEntry",
    "GetResult",
    "ModelCard",
    "ModelSource",
    "TinySizes",
    "Verification",
    "build_tiny",
    "data_home",
    "find_entry",
    "get_model",
    "model_folder",
    "read_adapter",
    "read_card",
    "resolve",
]
