"""The weights that an engine serves: the network's, with adapters merged in, under the names of its checkpoint."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rstar2.train.sharding.ranks import full_tensor

ADAPTER = "default"


def served_state(network: Any, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Full tensors, one at a time; of tied ones only the first. If the network is sharded, every rank must iterate over
    all."""
    adapted = {f"{name}.base_layer.weight": module for name, module in network.named_modules() if is_adapted(module)}
    for name, parameter in network.named_parameters():
        if "lora_" in name:
            continue
        module = adapted.get(name)
        with torch.no_grad():
            value = full_tensor(parameter.detach().to(dtype)) if module is None else merged_weight(module, dtype)
        yield name.replace(".base_layer.", "."), value


def served_shapes(network: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of `served_state`, in its order. No tensor is gathered for it."""
    return {
        name.replace(".base_layer.", "."): tuple(parameter.shape)
        for name, parameter in network.named_parameters()
        if "lora_" not in name
    }


def merged_weight(module: Any, dtype: torch.dtype) -> Tensor:
    """The weight of a layer with its adapters; the sum is taken in float32 and rounded once."""
    base = full_tensor(module.get_base_layer().weight.detach()).float()
    down, up = (full_tensor(matrix[ADAPTER].weight.detach()).float() for matrix in (module.lora_A, module.lora_B))
    scaling: float = module.scaling[ADAPTER]
    return (base + up @ down * scaling).to(dtype)


def is_adapted(module: Any) -> bool:
    return hasattr(module, "lora_A") and hasattr(module, "get_base_layer")
