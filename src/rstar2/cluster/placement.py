"""Who runs where: from a recipe to Ray's placement groups. Pure.

Invariant: in the colocated layout engine i and rank i hold the same GPU, in turns; in the separated layout, and on
CPUs, each has its own place.
"""

from dataclasses import dataclass
from typing import Literal

from rstar2.config import Recipe
from rstar2.config.cluster import Cluster
from rstar2.errors import UserError

Bundle = dict[str, float]

RANK_GPU_SHARE = 0.5
"""For Ray's books alone: a rank and an engine that share a GPU are two actors in one bundle."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bundles that are placed together, and which of them each rank and each engine gets."""

    bundles: tuple[Bundle, ...]
    strategy: Literal["PACK", "SPREAD"]
    rank_bundles: tuple[int, ...]
    engine_bundles: tuple[int, ...]
    gpus_per_rank: float
    gpus_per_engine: float


def place(cluster: Cluster) -> Placement:
    num_ranks = cluster.num_trainer_ranks or cluster.num_gpus
    num_engines = cluster.num_engines or cluster.num_gpus
    if cluster.num_gpus == 0:
        # Spread, so that a machine that is lost takes as little with it as possible.
        return Placement(
            bundles=({"CPU": 1.0},) * (num_ranks + num_engines),
            strategy="SPREAD",
            rank_bundles=tuple(range(num_ranks)),
            engine_bundles=tuple(range(num_ranks, num_ranks + num_engines)),
            gpus_per_rank=0.0,
            gpus_per_engine=0.0,
        )
    bundle = {"CPU": 2.0, "GPU": 1.0}
    if cluster.layout == "separated":
        return Placement(
            bundles=(bundle,) * (num_ranks + num_engines),
            strategy="PACK",
            rank_bundles=tuple(range(num_ranks)),
            engine_bundles=tuple(range(num_ranks, num_ranks + num_engines)),
            gpus_per_rank=1.0,
            gpus_per_engine=1.0,
        )
    return Placement(
        bundles=(bundle,) * max(num_ranks, num_engines),
        strategy="PACK",
        rank_bundles=tuple(range(num_ranks)),
        engine_bundles=tuple(range(num_engines)),
        gpus_per_rank=RANK_GPU_SHARE,
        gpus_per_engine=1.0 - RANK_GPU_SHARE,
    )


def require_room(recipe: Recipe, available: Bundle, num_nodes: int) -> None:
    """UserError says what the cluster lacks, before anything waits for it in vain."""
    cluster = recipe.cluster
    assert cluster is not None
    if num_nodes < cluster.num_nodes:
        raise UserError(f"cluster.num_nodes is {cluster.num_nodes}, but the Ray cluster has {num_nodes} nodes")
    wanted: Bundle = {}
    for bundle in place(cluster).bundles:
        for name, amount in bundle.items():
            wanted[name] = wanted.get(name, 0.0) + amount
    for name, amount in wanted.items():
        if available.get(name, 0.0) < amount:
            raise UserError(
                f"the recipe's [cluster] needs {amount:g} {name}s, but the Ray cluster has {available.get(name, 0):g}"
            )
