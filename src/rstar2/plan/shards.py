"""Shards the model really by FSDP2, on the meta device, under a fake process group.

One process acts as one rank of N: the trainer's own code shards each decoder layer and the rest of the model as it
would on N machines, and the sizes are read off the rank's tensors. No size of a shard comes from a formula.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rstar2.plan.layout import Layout
from rstar2.plan.meta_model import ModelPlan
from rstar2.train.sharding.fsdp import shard_layers


@dataclass(frozen=True, slots=True)
class Shards:
    """The shard of one rank, in elements, not in bytes."""

    rank: int
    shapes: dict[str, tuple[int, ...]]
    """Shape of this rank's shard of each parameter, by name."""
    num_local: int
    """Elements in those shards."""
    num_held: int
    """Elements in those shards with the padding that FSDP2 adds to make all shards equal."""
    num_held_trained: int
    """The trained part of `num_held`; less only with adapters."""
    num_root: int
    """Elements in the group that stays gathered during a step: embedding, last norm, head."""
    num_root_trained: int
    num_largest_layer: int
    """Elements in the largest group that is gathered and freed again."""
    num_largest_layer_trained: int


@contextmanager
def fake_ranks(rank: int, num_ranks: int) -> Iterator[None]:
    """A process group of `num_ranks` in which this process is `rank`, and in which nothing is ever sent."""
    # The import registers the backend.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert not dist.is_initialized(), "this process is already a rank of something"
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard(plan: ModelPlan, layout: Layout, rank: int) -> Shards:
    """The shard of the layout's rank `rank`."""
    with fake_ranks(rank, layout.num_ranks):
        model = plan.build(torch.float32)
        layers = [dict(layer.named_parameters()) for layer in model.model.layers]
        in_layers = {id(parameter) for layer in layers for parameter in layer.values()}
        root = [parameter for parameter in model.parameters() if id(parameter) not in in_layers]
        layer_sizes = [(_num(layer.values()), _num_trained(layer.values())) for layer in layers]
        num_root, num_root_trained = _num(root), _num_trained(root)
        shard_layers(model, _mesh(layout), plan.dtype)
        parameters: dict[str, Any] = dict(model.named_parameters())
        held = {
            name: parameter.to_local().untyped_storage().nbytes() // parameter.itemsize
            for name, parameter in parameters.items()
        }
        return Shards(
            rank=rank,
            shapes={name: tuple(parameter.to_local().shape) for name, parameter in parameters.items()},
            num_local=sum(parameter.to_local().numel() for parameter in parameters.values()),
            num_held=sum(held.values()),
            num_held_trained=sum(held[name] for name, parameter in parameters.items() if parameter.requires_grad),
            num_root=num_root,
            num_root_trained=num_root_trained,
            num_largest_layer=max(size for size, _ in layer_sizes),
            num_largest_layer_trained=max(size for _, size in layer_sizes),
        )


def unsharded(plan: ModelPlan) -> Shards:
    """The sizes of a model that is not sharded: one process holds all of it, and gathers nothing."""
    parameters = dict(plan.build(torch.float32).named_parameters())
    num_params = _num(parameters.values())
    return Shards(
        rank=0,
        shapes={name: tuple(parameter.shape) for name, parameter in parameters.items()},
        num_local=num_params,
        num_held=num_params,
        num_held_trained=_num_trained(parameters.values()),
        num_root=0,
        num_root_trained=0,
        num_largest_layer=0,
        num_largest_layer_trained=0,
    )


def _mesh(layout: Layout) -> DeviceMesh:
    if layout.ranks_per_shard == layout.num_ranks:
        return init_device_mesh("cpu", (layout.num_ranks,))
    sizes = (layout.num_ranks // layout.ranks_per_shard, layout.ranks_per_shard)
    return init_device_mesh("cpu", sizes, mesh_dim_names=("copy", "shard"))


def _num(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _num_trained(parameters: Any) -> int:
    return _num(parameter for parameter in parameters if parameter.requires_grad)
