"""One process among the ranks that learn together, and the collectives that they need besides gradients.

Invariant: ranks that learn together do the same things in the same order, each on its own share, so that every
collective that one of them enters is entered by all. A single rank enters none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

JOIN_TIMEOUT_S = 600.0
"""The longest that a rank waits for the others: above the slowest checkpoint, below a night lost to a dead machine."""


@dataclass(frozen=True, slots=True)
class Ranks:
    rank: int
    size: int

    def share(self, packs: Sequence[list[int]]) -> list[list[int]]:
        """This rank's packs. All ranks get the same number; a rank with too few gets empty packs."""
        mine = list(packs[self.rank :: self.size])
        num_rounds = -(-len(packs) // self.size)
        return mine + [[] for _ in range(num_rounds - len(mine))]

    def total(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over the ranks, which must all bring the same names."""
        if self.size == 1:
            return dict(values)
        names = sorted(values)
        sums = torch.tensor([values[name] for name in names], dtype=torch.float64)
        dist.all_reduce(sums)
        return dict(zip(names, sums.tolist(), strict=True))

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        return max(map(float, self.gather_texts(repr(value))))

    def gather_texts(self, mine: str) -> tuple[str, ...]:
        """The text of each rank, in their order."""
        if self.size == 1:
            return (mine,)
        gathered: list[str] = [""] * self.size
        dist.all_gather_object(gathered, mine)
        return tuple(gathered)

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.total({"here": 1.0})


ALONE = Ranks(rank=0, size=1)


@contextmanager
def joined(
    rank: int, size: int, rendezvous: str, device: torch.device, timeout_s: float = JOIN_TIMEOUT_S
) -> Iterator[Ranks]:
    """Joins the ranks that meet at `rendezvous` (`tcp://HOST:PORT` or `file://PATH`) into one process group.

    GPUs communicate through NCCL. Data in host memory (metrics, offloaded weights, plans of checkpoints) go through
    gloo.
    """
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
        init_method=rendezvous,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        yield Ranks(rank, size)
    finally:
        dist.destroy_process_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor, gathered if it is sharded; every rank must call this then."""
    if not isinstance(tensor, DTensor):
        return tensor
    on_device: Any = tensor.to(tensor.device_mesh.device_type)  # Offloaded shards are gathered where the ranks talk.
    gathered: Tensor = on_device.full_tensor()
    return gathered
