"""A rank's side of vLLM's weight transfer, by vLLM's own `TrainerWeightTransferEngine`. Imports vLLM."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer import (  # type: ignore[import-not-found]
    ParamMeta,
    WeightSource,
    WeightTransferTrainerFactory,
)

from rstar2.engine.vllm.transfer import (
    PIECE_BYTES,
    AbortingLink,
    Backend,
    ErrorKeepingLink,
    Link,
    Rendezvous,
    Sender,
    ServedWeights,
    WeightStream,
)


def open_trainer_engine(backend: Backend, rank: int, weights: ServedWeights, link: Link, meeting: Rendezvous) -> Sender:
    info, source = _init_info(backend, rank, weights, meeting), _Source(weights)
    if backend == "gloo":
        return _EngineSender(WeightTransferTrainerFactory.trainer_init(info, client=link, source=source))
    if backend == "ipc":
        checked = ErrorKeepingLink(link)
        return _CheckedSender(WeightTransferTrainerFactory.trainer_init(info, client=checked, source=source), checked)
    alarmed = AbortingLink(link)
    sender = _EngineSender(WeightTransferTrainerFactory.trainer_init(info, client=alarmed, source=source))
    alarmed.abort = sender.close
    return sender


@dataclass(frozen=True)
class _EngineSender:
    """Satisfies `Sender`."""

    engine: Any

    def send(self, running: WeightStream) -> None:
        self.engine.source.running = running
        self.engine.send_weights()

    def close(self) -> None:
        self.engine.shutdown()


@dataclass(frozen=True)
class _CheckedSender(_EngineSender):
    link: ErrorKeepingLink

    def send(self, running: WeightStream) -> None:
        super().send(running)
        if self.link.failure is not None:
            raise self.link.failure


class _Source(WeightSource):  # type: ignore[misc]
    def __init__(self, weights: ServedWeights) -> None:
        self._weights = weights
        self.running: WeightStream | None = None

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, self._weights.dtype, shape) for name, shape in self._weights.shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        assert self.running is not None
        return iter(self.running)


def _init_info(backend: Backend, rank: int, weights: ServedWeights, meeting: Rendezvous) -> Any:
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo  # type: ignore[import-not-found]

        piece_bytes = max(PIECE_BYTES, weights.largest_bytes)
        return IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=piece_bytes, rank=rank)
    where = (meeting.host, meeting.port, 1 + meeting.num_workers)
    if backend == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo  # type: ignore[import-not-found]

        return NCCLTrainerInitInfo(*where, packed_buffer_size_bytes=PIECE_BYTES, rank=rank)
    from rstar2.engine.vllm.gloo import GlooTrainerInitInfo

    return GlooTrainerInitInfo(*where, rank=rank)
