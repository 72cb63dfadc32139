"""Weights in transit from the ranks to the engines, through Ray's shared memory.

Each parcel is some hundred megabytes of named tensors as plain bytes. Engines on the same machine read it in place,
without a copy; Ray sends it to other machines once.
"""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PARCEL_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PackedTensor:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    data: Any
    """A numpy array of bytes, which Ray passes on without a copy."""


Parcel = tuple[PackedTensor, ...]


def parcels(state: Iterable[tuple[str, Tensor]]) -> Iterator[Parcel]:
    """Packs all tensors of `state` into parcels."""
    packed: list[PackedTensor] = []
    for name, tensor in state:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        packed.append(PackedTensor(name, tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy()))
        if sum(item.data.nbytes for item in packed) >= PARCEL_BYTES:
            yield tuple(packed)
            packed = []
    if packed:
        yield tuple(packed)


def unpack(parcel: Parcel) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a parcel. They share its memory, which must not be written to."""
    for item in parcel:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            data = torch.from_numpy(item.data)
        yield item.name, data.view(item.dtype).reshape(item.shape)
