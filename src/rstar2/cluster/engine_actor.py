"""One engine on one machine of the cluster, as a Ray actor: frames in and out, and new weights.

Invariant: no token is sampled with a mixture of old and new weights; every token carries its version.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.cluster.actors import Process
from rstar2.cluster.parcels import Parcel, unpack
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.protocol import EngineLoad
from rstar2.engine.remote import EngineHost
from rstar2.engine.remote.wire import Frame
from rstar2.engine.vllm import VllmInProcessEngine, VllmOptions
from rstar2.errors import UserError


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The settings with which every engine of a run is started."""

    folder: Path
    """The model's folder, under the same path on every machine."""
    options: EmbeddedOptions | VllmOptions
    device: str
    num_threads: int


class EngineActor:
    """An engine as an actor, which the fleet makes remote. Its methods run concurrently in one event loop."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._engine: EmbeddedEngine | VllmInProcessEngine | None = None
        self._host: EngineHost | None = None

    async def start(self) -> tuple[EngineLoad, Process]:
        """Loads the model; returns the engine's load, and where it runs."""
        self._engine = _open(self._plan)
        self._host = EngineHost(self._engine)
        return self._engine.load(), Process.of_this_actor()

    async def act(self, frame: Frame) -> None:
        assert self._host is not None
        self._host.act(frame)

    async def next_frame(self) -> Frame:
        assert self._host is not None
        return await self._host.next_frame()

    # For engines that share their GPU with a rank. An embedded one keeps its weights and its cache there: it never
    # sleeps.

    async def sleep(self) -> None:
        if isinstance(self._engine, VllmInProcessEngine):
            await self._engine.sleep()

    async def wake_for_weights(self) -> None:
        if isinstance(self._engine, VllmInProcessEngine):
            await self._engine.wake_for_weights()

    async def wake(self) -> None:
        if isinstance(self._engine, VllmInProcessEngine):
            await self._engine.wake()

    # New weights of an embedded engine.

    async def load_weights(self, references: Sequence[Any], version: int) -> None:
        """Loads new weights from parcels, whose references make Ray pass them as shared memory."""
        assert isinstance(self._engine, EmbeddedEngine)
        await asyncio.to_thread(_copy, self._engine, [await reference for reference in references], version)

    # New weights of vLLM, called by the first rank.

    async def is_there(self) -> None:
        """Returns if the actor is alive."""

    async def open_transfer(self, init_info: dict[str, Any]) -> None:
        await self._vllm.open_transfer(init_info)

    async def begin_transfer(self) -> None:
        await self._vllm.begin_transfer()

    async def receive(self, update_info: dict[str, Any]) -> None:
        await self._vllm.receive(update_info)

    async def end_transfer(self, version: int) -> None:
        await self._vllm.end_transfer(version)

    @property
    def _vllm(self) -> VllmInProcessEngine:
        assert isinstance(self._engine, VllmInProcessEngine)
        return self._engine


def _open(plan: EnginePlan) -> EmbeddedEngine | VllmInProcessEngine:
    if isinstance(plan.options, VllmOptions):
        return VllmInProcessEngine.from_folder(plan.folder, plan.options)
    import torch

    torch.set_num_threads(plan.num_threads)
    return EmbeddedEngine.from_folder(plan.folder, plan.options, device=plan.device)


def _copy(engine: EmbeddedEngine, parcels: Sequence[Parcel], version: int) -> None:
    import torch

    own = dict(engine.model.named_parameters())
    with engine.paused(), torch.no_grad():
        for parcel in parcels:
            for name, tensor in unpack(parcel):
                if name not in own or own[name].shape != tensor.shape:
                    raise UserError(f"the trainer's weights are of another model than the engine's: {name}")
                own[name].copy_(tensor)
        engine.weights_changed(version)
