"""Syncs new weights from the ranks to the engines, in two ways with one interface.

Invariant: the ranks' current weights are delivered, so nothing is delivered while they learn. An engine that is not
reported as failed has all of them, and every token carries their version.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rstar2.cluster.actors import ask_each
from rstar2.cluster.learner import RankedLearner
from rstar2.engine.vllm.transfer import Backend

LOAD_S = 600.0
"""Timeout of loading parcels: those of a large model take minutes over the network."""


class WeightSync(Protocol):
    def weights_changed(self) -> None:
        """Tells the sync that the ranks have newer weights than those delivered last."""
        ...

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        """Send the ranks' weights, which are `version`, to these engines. Returns those that failed, and why."""
        ...


class ObjectStoreSync:
    """Syncs through Ray's shared memory, for embedded engines: each tensor is gathered once, and each machine gets it
    once."""

    def __init__(self, learner: RankedLearner) -> None:
        self._learner = learner
        self._parcels: Sequence[Any] | None = None
        """References to the parcels packed last, for engines that join later."""

    def weights_changed(self) -> None:
        self._parcels = None

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        if self._parcels is None:
            self._parcels = await self._learner.pack_weights()
        return await ask_each(engines, "load_weights", self._parcels, version, deadline_s=LOAD_S)


class VllmTransferSync:
    """Syncs from the ranks to vLLM's workers, through vLLM's transfer interface; nothing is stored in between.

    A transfer that fails leaves all engines that took part with weights of no known version.
    """

    def __init__(self, learner: RankedLearner, backend: Backend, num_workers_each: int) -> None:
        self._learner = learner
        self._backend: Backend = backend
        self._num_workers_each = num_workers_each

    def weights_changed(self) -> None:
        """Does nothing: the ranks always send their current weights."""

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        if not engines:
            return {}
        failure = await self._learner.send_weights(engines, version, self._backend, self._num_workers_each)
        return {} if failure is None else dict.fromkeys(engines, failure)
