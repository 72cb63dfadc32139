"""Recipes: a whole run is one TOML file, read into typed, checked, frozen values.

Promise: a `Recipe` that exists is possible; a file that holds none gives one `UserError` that names every mistake, its
key, its line and the nearest valid name. The reference of all fields is made from the models that check them.
May import: nothing.
"""

from rstar2.config.cluster import Cluster
from rstar2.config.curriculum import BENCHMARKS, DataSet, DifficultyFilter, Evaluation, Stage
from rstar2.config.emit import to_toml
from rstar2.config.generation import Agent, Engine, Rollout
from rstar2.config.learning import Algo, Sft, Train
from rstar2.config.load import RecipeReading, examine_recipe, load_recipe, parse_recipe
from rstar2.config.model import Lora, Model, Tiny
from rstar2.config.recipe import Recipe
from rstar2.config.sandbox import Sandbox, SandboxLimits

__all__ = [
    "BENCHMARKS",
    "Agent",
    "Algo",
    "Cluster",
    "DataSet",
    "DifficultyFilter",
    "Engine",
    "Evaluation",
    "Lora",
    "Model",
    "Recipe",
    "RecipeReading",
    "Rollout",
    "Sandbox",
    "SandboxLimits",
    "Sft",
    "Stage",
    "Tiny",
    "Train",
    "examine_recipe",
    "load_recipe",
    "parse_recipe",
    "to_toml",
]
