"""Sends weights from the trainer's ranks to vLLM's workers, through vLLM's own transfer interface. Imports no vLLM.

Invariant: tensors are gathered one at a time, by all ranks together. So a rank iterates over all of them in every
transfer, whatever happens to the engines; it learns at the end whether they arrived.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rstar2.engine.vllm.checkpoint import EMBEDDING, HEAD
from rstar2.engine.vllm.version import require_vllm
from rstar2.errors import InfrastructureError

Backend = Literal["nccl", "ipc", "gloo"]
"""How the bytes travel. nccl (between GPUs) and ipc (within one GPU) are vLLM's own; gloo is for CPUs."""

PIECE_BYTES = 512 << 20
"""Bytes of tensors that are sent together: large enough for full speed, small compared to a GPU's memory."""
STEP_S = 300.0
"""Timeout of each step of a transfer. The weights of a large model take seconds; connecting many workers takes more."""


class TransferError(InfrastructureError):
    """The weights did not reach all engines that they were sent to: those have weights of no known version."""


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """All weights of an engine, under the names of the checkpoint, without holding any of them."""

    shapes: Mapping[str, tuple[int, ...]]
    """The shapes, in the order of `tensors`."""
    dtype: torch.dtype
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    """Yields full tensors, one at a time, on every rank."""

    @property
    def largest_bytes(self) -> int:
        return max(prod(shape) for shape in self.shapes.values()) * self.dtype.itemsize


def with_head(weights: ServedWeights) -> ServedWeights:
    """Adds a separate output head, for vLLM on a CPU: see `checkpoint`."""
    if HEAD in weights.shapes:
        return weights
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.shapes.items():
        shapes[name] = shape
        if name == EMBEDDING:
            shapes[HEAD] = shape

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights.tensors():
            yield name, tensor
            if name == EMBEDDING:
                yield HEAD, tensor

    return ServedWeights(shapes, weights.dtype, tensors)


class WeightStream:
    """One iteration over the weights, which the rank can finish when the sender has failed in the middle."""

    def __init__(self, weights: ServedWeights) -> None:
        self.error: Exception | None = None
        """The error of the iteration itself: a fault of this rank, and of no engine."""
        self._tensors = self._iterate(weights)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._tensors

    def finish(self) -> None:
        """Iterate over the rest."""
        for _ in self._tensors:
            pass

    def _iterate(self, weights: ServedWeights) -> Iterator[tuple[str, Tensor]]:
        try:
            yield from weights.tensors()
        except Exception as error:
            self.error = error
            raise


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The address at which the first rank and all workers connect; unused with `ipc`."""

    host: str
    port: int
    num_workers: int


class Link(Protocol):
    """Calls of a sender to all engines at once, with the names of vLLM's `VLLMWeightSyncClient`. Each call returns when
    all engines are done, and raises if one fails."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


class ErrorKeepingLink:
    """A link for `ipc`, in which ranks wait for each other between pieces, so a rank that raised would block the
    others. It keeps the first failure, and calls no engine after it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.failure: Exception | None = None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._try(lambda: self._link.init_weight_transfer_engine(init_info))

    def start_weight_update(self) -> None:
        self._try(self._link.start_weight_update)

    def update_weights(self, update_info: Any) -> None:
        self._try(lambda: self._link.update_weights(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._try(lambda: self._link.finish_weight_update(weight_version))

    def _try(self, ask: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                ask()
            except Exception as error:
                self.failure = error


class AbortingLink:
    """A link for broadcasts, in which the sender waits for every worker: it aborts the broadcast when an engine
    fails."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.abort: Callable[[], None] = lambda: None
        """Aborts the broadcast of another thread."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._link.init_weight_transfer_engine(init_info)

    def start_weight_update(self) -> None:
        self._link.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        try:
            self._link.update_weights(update_info)
        except Exception:
            self.abort()
            raise

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._link.finish_weight_update(weight_version)


class Sender(Protocol):
    """One rank's side of transfers to the same engines."""

    def send(self, running: WeightStream) -> None:
        """Sends the weights. Every rank must call it; on the first rank it raises if an engine did not get them all."""
        ...

    def close(self) -> None: ...


def has_trainer_engines() -> bool:
    """Whether this vLLM also has engines for the trainer's side: 0.28 does, 0.25 does not."""
    from vllm.distributed import weight_transfer  # type: ignore[import-not-found]

    return hasattr(weight_transfer, "WeightTransferTrainerFactory")


def open_sender(backend: Backend, rank: int, weights: ServedWeights, link: Link, meeting: Rendezvous) -> Sender:
    """Opens a rank's sender. Every rank opens one; only the first calls the engines and connects to their workers, and
    raises if that fails."""
    require_vllm()
    if has_trainer_engines():
        from rstar2.engine.vllm.sender import open_trainer_engine

        return open_trainer_engine(backend, rank, weights, link, meeting)
    from rstar2.engine.vllm.sender_v025 import open_v025_sender

    return open_v025_sender(backend, rank, weights, link, meeting)
