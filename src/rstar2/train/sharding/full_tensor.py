"""What lies in shards on many ranks, put together on each of them."""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or all of one that is sharded: then every rank must ask for it."""
    if not isinstance(tensor, DTensor):
        return tensor
    on_device: Any = tensor.to(tensor.device_mesh.device_type)  # Offloaded shards are gathered where the ranks talk.
    found: Tensor = on_device.full_tensor()
    return found
