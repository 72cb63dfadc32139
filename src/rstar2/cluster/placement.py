"""Decides where actors run: makes Ray's placement groups from a recipe. Pure.

Invariant: in the colocated layout engine i and rank i hold the same GPU, in turns; in the separated layout, and on
CPUs, each has its own place.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rstar2.config import Recipe
from rstar2.config.cluster import ClusterSection
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.engine.vllm.transfer import Backend

Bundle = dict[str, float]

RANK_GPU_SHARE = 0.5
"""A rank's share of a GPU, for Ray's accounting only: a rank and an engine that share a GPU are two actors in one
bundle."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Bundles that are placed together, and which of them each rank and each engine gets."""

    bundles: tuple[Bundle, ...]
    strategy: Literal["PACK", "SPREAD"]
    rank_bundles: tuple[int, ...]
    engine_bundles: tuple[int, ...]
    gpus_per_rank: float
    gpus_per_engine: float


def place(cluster: ClusterSection) -> Placement:
    num_ranks = cluster.num_trainer_ranks or cluster.num_gpus
    num_engines = cluster.num_engines or cluster.num_gpus
    is_colocated = cluster.num_gpus > 0 and cluster.layout == "colocated"
    first_engine = 0 if is_colocated else num_ranks
    rank_gpus = 0.0 if cluster.num_gpus == 0 else RANK_GPU_SHARE if is_colocated else 1.0
    bundle = {"CPU": 2.0, "GPU": 1.0} if cluster.num_gpus else {"CPU": 1.0}
    return Placement(
        bundles=(bundle,) * max(num_ranks, first_engine + num_engines),
        # CPUs are spread, so that a machine that is lost takes as few actors with it as possible.
        strategy="PACK" if cluster.num_gpus else "SPREAD",
        rank_bundles=tuple(range(num_ranks)),
        engine_bundles=tuple(range(first_engine, first_engine + num_engines)),
        gpus_per_rank=rank_gpus,
        gpus_per_engine=1.0 - RANK_GPU_SHARE if is_colocated else rank_gpus,
    )


def transfer_backend(cluster: ClusterSection) -> "Backend":
    """How weights travel to vLLM engines. NCCL cannot join two processes on one GPU, and needs GPUs."""
    if cluster.num_gpus == 0:
        return "gloo"
    if cluster.layout == "separated":
        return "nccl"
    placement = place(cluster)
    if len(placement.engine_bundles) > len(placement.rank_bundles):
        raise UserError(
            f"cluster.num_engines is {len(placement.engine_bundles)}, but cluster.num_trainer_ranks is "
            f"{len(placement.rank_bundles)}: in the colocated layout a vLLM engine takes its weights from the rank on "
            'its own GPU; have as many ranks as engines, or set cluster.layout to "separated"'
        )
    return "ipc"


def require_room(recipe: Recipe, available: Bundle, num_nodes: int) -> None:
    """Raises UserError that says what the cluster lacks, before anything waits for it in vain."""
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
