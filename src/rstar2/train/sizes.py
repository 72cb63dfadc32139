"""Which recipes one process can train, and which a cluster: said before anything is loaded or written."""

from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.errors import UserError


def check_solo(recipe: Recipe) -> None:
    """UserError if one process on this machine cannot train it."""
    if recipe.cluster is not None:
        raise UserError("the recipe has a [cluster]: train it with --cluster, or leave that section out")
    choose_device(recipe.model.device)


def check_cluster(recipe: Recipe) -> None:
    """UserError if a cluster cannot train it."""
    if recipe.cluster is None:
        raise UserError("the recipe has no [cluster]: add that section, or leave --cluster out")
