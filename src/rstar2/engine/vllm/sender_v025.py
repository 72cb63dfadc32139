"""A rank's side of weight transfer for vLLM 0.25, which has no trainer engine of its own. Imports vLLM."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

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


def open_v025_sender(backend: Backend, rank: int, weights: ServedWeights, link: Link, meeting: Rendezvous) -> Sender:
    if backend == "ipc":
        return _IpcSender(rank, weights, ErrorKeepingLink(link))
    assert backend == "nccl", "no engine is started with any other"
    return _NcclSender(rank, weights, AbortingLink(link), meeting)


class _IpcSender:
    """Satisfies `Sender`."""

    def __init__(self, rank: int, weights: ServedWeights, link: ErrorKeepingLink) -> None:
        from vllm.distributed.weight_transfer.ipc_engine import (  # type: ignore[import-not-found]
            IPCTrainerSendWeightsArgs,
            IPCWeightTransferEngine,
        )

        self._rank = rank
        self._link = link
        self._send = IPCWeightTransferEngine.trainer_send_weights
        self._arguments = IPCTrainerSendWeightsArgs(
            send_mode=lambda info: link.update_weights(asdict(info)),
            packed=True,
            packed_buffer_size_bytes=max(PIECE_BYTES, weights.largest_bytes),
        )
        if rank == 0:
            link.init_weight_transfer_engine({})

    def send(self, running: WeightStream) -> None:
        if self._rank == 0:
            self._link.start_weight_update()
        self._send(iter(running), self._arguments)
        if self._rank == 0:
            self._link.finish_weight_update()
        if self._link.failure is not None:
            raise self._link.failure

    def close(self) -> None:
        """Does nothing: nothing is open between two transfers."""


class _NcclSender:
    """Satisfies `Sender`."""

    def __init__(self, rank: int, weights: ServedWeights, link: AbortingLink, meeting: Rendezvous) -> None:
        from vllm.distributed.weight_transfer.nccl_engine import (  # type: ignore[import-not-found]
            NCCLWeightTransferEngine,
        )

        self._engine = NCCLWeightTransferEngine
        self._weights = weights
        self._link = link
        self._group: Any = None
        if rank == 0:
            where = {
                "master_address": meeting.host,
                "master_port": meeting.port,
                "world_size": 1 + meeting.num_workers,
            }
            with ThreadPoolExecutor(1) as background:
                joining = background.submit(link.init_weight_transfer_engine, {**where, "rank_offset": 1})
                self._group = self._engine.trainer_init(where)
                joining.result()
            link.abort = self.close

    def send(self, running: WeightStream) -> None:
        group = self._group
        if group is None:
            running.finish()
            return
        info = {
            "names": list(self._weights.shapes),
            "dtype_names": [str(self._weights.dtype).removeprefix("torch.")] * len(self._weights.shapes),
            "shapes": [list(shape) for shape in self._weights.shapes.values()],
            "packed": True,
            "packed_buffer_size_bytes": PIECE_BYTES,
        }
        self._link.start_weight_update()
        with ThreadPoolExecutor(1) as background:
            receiving = background.submit(self._link.update_weights, info)
            try:
                arguments = {"group": group, "packed": True, "packed_buffer_size_bytes": PIECE_BYTES}
                self._engine.trainer_send_weights(iter(running), arguments)
            finally:
                receiving.result()  # Which engine failed says more than that the broadcast was aborted.
        self._link.finish_weight_update()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.destroy()
