"""The model on its ranks: really sharded by FSDP2, on the meta device, under a process group that only pretends.

One process plays one rank of N: the trainer's own code cuts each decoder layer and the rest of the model as it would on
N machines, and what the rank then holds is read off its tensors. No number is derived from a formula for shards.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from rstar2.plan.layout import Layout
from rstar2.plan.meta_model import ModelPlan
from rstar2.train.sharding.fsdp import shard_layers


@dataclass(frozen=True, slots=True)
class Shards:
    """What one rank holds, in numbers of the model, not in bytes."""

    rank: int
    shapes: dict[str, tuple[int, ...]]
    """Of this rank's part of each parameter, by name."""
    num_local: int
    """Numbers in those parts."""
    num_held: int
    """The same with the padding that FSDP2 adds, so that every rank has as many."""
    num_held_trained: int
    """Of those held, the ones that are trained; less only with adapters."""
    num_root: int
    """Numbers in the group that stays gathered through a step: embedding, last norm, head."""
    num_root_trained: int
    num_largest_layer: int
    """Numbers in the largest group that is gathered and given back again."""
    num_largest_layer_trained: int


@contextmanager
def pretended_ranks(rank: int, num_ranks: int) -> Iterator[None]:
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
    """Rank `rank` of the layout's."""
    with pretended_ranks(rank, layout.num_ranks):
        model = plan.build(torch.float32)
        layers = [dict(layer.named_parameters()) for layer in model.model.layers]
        in_layers = {id(parameter) for layer in layers for parameter in layer.values()}
        root = [parameter for parameter in model.parameters() if id(parameter) not in in_layers]
        layer_sizes = [(_num(layer.values()), _num_trained(layer.values())) for layer in layers]
        num_root, num_root_trained = _num(root), _num_trained(root)
        shard_layers(model, _mesh(layout), plan.dtype)
        parameters: dict[str, Any] = dict(model.named_parameters())
        held = {name: _num_held(parameter) for name, parameter in parameters.items()}
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


def whole(plan: ModelPlan) -> Shards:
    """A model that is not sharded: one process holds all of it, and gathers nothing."""
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


def _num_held(parameter: Any) -> int:
    local: Tensor = parameter.to_local()
    return local.untyped_storage().nbytes() // local.itemsize
