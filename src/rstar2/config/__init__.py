"""Recipes: a run is one TOML file, read into typed, checked, frozen values.

Promise: a `Recipe` that exists is possible; a file that holds none gives one `UserError` that names every mistake, its
key, its line and the nearest valid name. The reference of all fields is made from the models that check them.
May import: nothing.
"""

from rstar2.config.cluster import ClusterSection
from rstar2.config.curriculum import DataSet, DifficultyFilter, EvalSection, StageSection
from rstar2.config.emit import to_toml
from rstar2.config.environment import EnvironmentSection, McpServer
from rstar2.config.generation import AgentSection, EngineSection, RolloutSection, SandboxLimits, SandboxSection
from rstar2.config.learning import AlgoSection, SftSection, TrainSection
from rstar2.config.load import RecipeReading, examine_recipe, load_recipe, parse_recipe, recipe_text
from rstar2.config.model import Lora, ModelSection, Tiny
from rstar2.config.recipe import Recipe
from rstar2.config.shipped import ShippedRecipe, shipped_recipes
from rstar2.config.trees import ForkSection, TreeSection

__all__ = [
    "AgentSection",
    "AlgoSection",
    "ClusterSection",
    "DataSet",
    "DifficultyFilter",
    "EngineSection",
    "EnvironmentSection",
    "EvalSection",
    "ForkSection",
    "Lora",
    "McpServer",
    "ModelSection",
    "Recipe",
    "RecipeReading",
    "RolloutSection",
    "SandboxLimits",
    "SandboxSection",
    "SftSection",
    "ShippedRecipe",
    "StageSection",
    "Tiny",
    "TrainSection",
    "TreeSection",
    "examine_recipe",
    "load_recipe",
    "parse_recipe",
    "recipe_text",
    "shipped_recipes",
    "to_toml",
]
