"""One engine on one machine of the cluster, as a Ray actor: frames in and out, and new weights.

Invariant: no token is made with a mixture of old and new weights; every token says which version made it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rstar2.cluster.actors import Process
from rstar2.cluster.weights import Parcel, unpack
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.protocol import Engine
from rstar2.engine.remote import EngineHost
from rstar2.engine.remote.wire import Frame, encode_load
from rstar2.engine.vllm import VllmInProcessEngine, VllmOptions
from rstar2.errors import UserError


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What every engine of a run is started with."""

    folder: Path
    """Of the model, on every machine under the same path."""
    options: EmbeddedOptions | VllmOptions
    device: str
    num_threads: int


class Served(Protocol):
    """An engine whose weights can be changed."""

    @property
    def engine(self) -> Engine: ...

    async def load_weights(self, parcels: Sequence[Parcel], version: int) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class EngineActor:
    """Made remote by the fleet. Its methods run side by side in one event loop."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._served: Served | None = None
        self._host: EngineHost | None = None

    async def start(self) -> tuple[Frame, Process]:
        """Loads the model; the engine's load when it is there, and where it runs."""
        self._served = _serve(self._plan)
        self._host = EngineHost(self._served.engine)
        return encode_load(self._served.engine.load()), Process.of_this_actor()

    async def act(self, frame: Frame) -> None:
        assert self._host is not None
        self._host.act(frame)

    async def next_frame(self) -> Frame:
        assert self._host is not None
        return await self._host.next_frame()

    async def load_weights(self, references: Sequence[Any], version: int) -> None:
        """References to parcels, so that Ray hands them over as memory that is shared."""
        assert self._served is not None
        await self._served.load_weights([await reference for reference in references], version)

    async def sleep(self) -> None:
        assert self._served is not None
        await self._served.sleep()

    async def wake(self) -> None:
        assert self._served is not None
        await self._served.wake()


def _serve(plan: EnginePlan) -> Served:
    if isinstance(plan.options, VllmOptions):
        return _ServedVllm(VllmInProcessEngine.from_folder(plan.folder, plan.options), plan.options)
    import torch

    torch.set_num_threads(plan.num_threads)
    return _ServedEmbedded(EmbeddedEngine.from_folder(plan.folder, plan.options, device=plan.device))


class _ServedEmbedded:
    """Satisfies `Served`."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine

    async def load_weights(self, parcels: Sequence[Parcel], version: int) -> None:
        await asyncio.to_thread(self._copy, parcels, version)

    def _copy(self, parcels: Sequence[Parcel], version: int) -> None:
        import torch

        own = dict(self.engine.model.named_parameters())
        with self.engine.paused(), torch.no_grad():
            for parcel in parcels:
                for name, tensor in unpack(parcel):
                    if name not in own or own[name].shape != tensor.shape:
                        raise UserError(f"the trainer's weights are of another model than the engine's: {name}")
                    own[name].copy_(tensor)
            self.engine.weights_changed(version)

    async def sleep(self) -> None:
        """It holds no more of its GPU than its weights and its cache, and keeps them."""

    async def wake(self) -> None:
        """It never slept."""


class _ServedVllm:
    """Satisfies `Served`."""

    def __init__(self, engine: VllmInProcessEngine, options: VllmOptions) -> None:
        self.engine = engine
        self._can_sleep = options.can_sleep

    async def load_weights(self, parcels: Sequence[Parcel], version: int) -> None:
        weights = (pair for parcel in parcels for pair in unpack(parcel))
        await self.engine.update_weights(weights, version)

    async def sleep(self) -> None:
        if self._can_sleep:
            await self.engine.sleep()

    async def wake(self) -> None:
        if self._can_sleep:
            await self.engine.wake()
