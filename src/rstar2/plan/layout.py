"""Finds the devices that a recipe needs, and which of them train, generate, or do both. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from rstar2.config import Recipe
from rstar2.errors import UserError
from rstar2.plan.devices import Device


class Sharing(StrEnum):
    """How an engine and a trainer rank share a device."""

    ONE_MODEL = "one model"
    """One process: the engine reads the trainer's weights, and its cache stays while training."""
    TURNS = "turns"
    """The engine sleeps while training: its weights and cache leave the device."""
    SIDE_BY_SIDE = "side by side"
    """The engine keeps its own weights and cache while training."""
    APART = "apart"
    """Trainer ranks and engines have separate devices."""


@dataclass(frozen=True, slots=True)
class Layout:
    num_ranks: int
    num_engines: int
    num_devices: int
    """All devices that are reserved."""
    num_nodes: int
    ranks_per_shard: int
    """Ranks that together hold one copy of the model."""
    sharing: Sharing
    is_sharded: bool
    """Whether FSDP2 shards the model; with one process it does not."""
    is_offloaded: bool = False
    runs_ahead: bool = False
    """Whether a step is generated while an earlier one is trained on (off-policy)."""

    @property
    def ranks_per_node(self) -> int:
        return -(-self.num_ranks // self.num_nodes)


def find_layout(recipe: Recipe, device: Device) -> Layout:
    cluster = recipe.cluster
    if cluster is None:
        return Layout(1, 1, 1, 1, 1, Sharing.ONE_MODEL, is_sharded=False)
    num_ranks = cluster.num_trainer_ranks or cluster.num_gpus
    num_engines = cluster.num_engines or cluster.num_gpus
    is_apart = cluster.layout == "separated"
    takes_turns = recipe.engine.kind == "vllm" and device.is_gpu
    ranks_per_node = -(-num_ranks // cluster.num_nodes)
    if cluster.sharding == "node" and num_ranks % cluster.num_nodes:
        raise UserError(
            f'cluster.sharding: "node" needs as many ranks on each of the {cluster.num_nodes} machines, and '
            f'{num_ranks} cannot be divided so; set it to "full"'
        )
    return Layout(
        num_ranks=num_ranks,
        num_engines=num_engines,
        num_devices=cluster.num_gpus or cluster.num_nodes,
        num_nodes=cluster.num_nodes,
        ranks_per_shard=ranks_per_node if cluster.sharding == "node" else num_ranks,
        sharing=Sharing.APART if is_apart else Sharing.TURNS if takes_turns else Sharing.SIDE_BY_SIDE,
        is_sharded=True,
        is_offloaded=cluster.cpu_offload,
        runs_ahead=is_apart and recipe.train.max_staleness > 0,
    )
