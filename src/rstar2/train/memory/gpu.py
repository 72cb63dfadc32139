"""Divides the GPU of this machine, by the memory that is free on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rstar2.config import Recipe
from rstar2.engine.embedded.weights import load_config
from rstar2.errors import UserError
from rstar2.train.memory.division import Division, divide
from rstar2.train.memory.need import GpuNeed

_LEAST_MARGIN_BYTES = 1 << 30
_MARGIN_SHARE = 0.03
"""The share of free memory that is left free, for libraries, compiled kernels and the allocators' rounding."""


def divide_gpu(recipe: Recipe, folder: Path, device: torch.device, itemsize: int, num_workers: int) -> Division:
    """The division for the model in the folder, of which nothing is loaded yet. Raises UserError if the recipe cannot
    fit."""
    torch.cuda.empty_cache()
    index = _index(device)
    free_bytes, device_bytes = torch.cuda.mem_get_info(index)
    # A limit on this process's memory is taken as the limit of the whole run.
    free_bytes = min(free_bytes, int(device_bytes * torch.cuda.get_per_process_memory_fraction(index)))
    capacity_bytes = free_bytes - max(_LEAST_MARGIN_BYTES, int(free_bytes * _MARGIN_SHARE))
    need = GpuNeed.of(recipe, load_config(folder), itemsize)
    division = divide(recipe, need, capacity_bytes, device_bytes, num_workers)
    if division.problem is not None:
        raise UserError(division.problem)
    return division


@contextmanager
def limited_trainer(division: Division, device: torch.device) -> Iterator[None]:
    """Inside it the trainer's process cannot exceed its part of the GPU, so the engine's process gets its own part."""
    index = _index(device)
    before = torch.cuda.get_per_process_memory_fraction(index)
    _, device_bytes = torch.cuda.mem_get_info(index)
    torch.cuda.set_per_process_memory_fraction(min(before, division.trainer_bytes / device_bytes), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
