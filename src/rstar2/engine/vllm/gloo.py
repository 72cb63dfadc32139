"""A backend of vLLM's weight transfer for CPUs, where NCCL cannot run: gloo, a tensor at a time. Imports vLLM.

Importing this module registers both ends with vLLM's factories. A worker imports it because vLLM is given `GlooWorker`
as its `worker_extension_cls`.
"""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from threading import Thread
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from vllm.distributed.weight_transfer import (  # type: ignore[import-not-found]
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferEngine,
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found]
    TrainerInitInfo,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (  # type: ignore[import-not-found]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from rstar2.engine.vllm.transfer import STEP_S, Link

BACKEND = "gloo"
SENDER = 0
POLL_S = 0.0005
"""Seconds between two polls of a broadcast. Most broadcasts are over within that time."""


@dataclass
class GlooInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    backend: ClassVar[str] = BACKEND

    master_address: str
    master_port: int
    world_size: int


class GlooEngine(WeightTransferEngine):  # type: ignore[misc]
    """A worker's end of the transfer."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo
    _group: Any = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        self._group = _join_group(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Unlike vLLM's own, which then waits for an accelerator.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        self.model.load_weights(self._arriving(update_info))

    def _arriving(self, info: GlooUpdateInfo) -> Iterator[tuple[str, Tensor]]:
        assert self._group is not None
        for name, dtype_name, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
            self._group.broadcast(tensor, SENDER).wait()
            yield name, tensor

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self._group = None


class GlooTrainerEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """A trainer rank's end of the transfer. The first rank sends; the others help to gather the tensors."""

    init_info_cls = GlooTrainerInitInfo
    _group: Any = None

    @classmethod
    def trainer_init(cls, init_info: GlooTrainerInitInfo, *, client: Link, source: WeightSource | None = None) -> Self:
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        if engine.is_sender:
            host, port, world_size = init_info.master_address, init_info.master_port, init_info.world_size
            with ThreadPoolExecutor(1) as background:
                workers = GlooInitInfo(host, port, rank_offset=1, world_size=world_size)
                meeting = background.submit(client.init_weight_transfer_engine, asdict(workers))
                engine._group = _join_group(host, port, SENDER, world_size)
                meeting.result()
        return engine

    def send_weights(self) -> None:
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        metadata = self.source.metadata()
        info = GlooUpdateInfo(
            names=[item.name for item in metadata],
            dtype_names=[str(item.dtype).removeprefix("torch.") for item in metadata],
            shapes=[list(item.shape) for item in metadata],
        )
        self.client.start_weight_update()
        with ThreadPoolExecutor(1) as background:
            receiving = background.submit(self.client.update_weights, asdict(info))
            for _, tensor in self.source:
                self._broadcast(tensor.contiguous(), receiving)
            receiving.result()
        self.client.finish_weight_update()

    def _broadcast(self, tensor: Tensor, receiving: "Future[None]") -> None:
        """Broadcasts a tensor. A failed worker receives nothing, and gloo cannot abort a broadcast, so it is
        abandoned."""
        work = self._group.broadcast(tensor, SENDER)
        while not work.is_completed():
            if receiving.done() and receiving.exception() is not None:
                receiving.result()
            time.sleep(POLL_S)
        work.wait()

    def shutdown(self) -> None:
        # Destroying a group waits for an abandoned broadcast until its workers end, so another thread does it.
        held = [self._group]
        self._group = None
        Thread(target=held.clear, daemon=True).start()


class GlooWorker:
    """A worker extension that adds nothing to vLLM's worker, which imports this module for its sake."""


WeightTransferEngineFactory.register_engine(BACKEND, GlooEngine)
WeightTransferTrainerFactory.register_engine(BACKEND, GlooTrainerEngine)


def _join_group(host: str, port: int, rank: int, world_size: int) -> Any:
    """A process group in addition to the default one. It listens on the given address alone."""
    timeout = timedelta(seconds=STEP_S)
    if rank == SENDER:
        listener = socket.create_server((host, port))
        store = TCPStore(host, port, world_size, True, timeout, master_listen_fd=listener.detach(), use_libuv=False)
    else:
        store = TCPStore(host, port, world_size, False, timeout, use_libuv=False)
    return ProcessGroupGloo(store, rank, world_size, timeout)
