"""How new weights get from the ranks to the engines. Two ways, one interface.

Invariant: the ranks' current weights are delivered, so nothing is delivered while they learn. An engine that is not
named as failed has all of them, and every token carries their version.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rstar2.cluster.actors import ask_each
from rstar2.cluster.learner import RankedLearner
from rstar2.engine.vllm.transfer import Backend

LOAD_S = 600.0
"""Parcels of a large model come over the network in minutes."""


class WeightSync(Protocol):
    def weights_changed(self) -> None:
        """The ranks have newer weights than those that were delivered last."""
        ...

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        """Send the ranks' weights, which are `version`, to these engines. Returns those that failed, and why."""
        ...


class ObjectStoreSync:
    """Through Ray's shared memory, for embedded engines: each tensor is gathered once, each machine gets it once."""

    def __init__(self, learner: RankedLearner) -> None:
        self._learner = learner
        self._parcels: Sequence[Any] | None = None
        """References to what was packed last, for engines that join later."""

    def weights_changed(self) -> None:
        self._parcels = None

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        if self._parcels is None:
            self._parcels = await self._learner.pack_weights()
        return await ask_each(engines, "load_weights", self._parcels, version, deadline_s=LOAD_S)


class VllmTransferSync:
    """From the ranks to vLLM's workers, through vLLM's transfer interface: nothing is kept in between.

    A transfer that fails leaves all engines that took part with weights of no known version.
    """

    def __init__(self, learner: RankedLearner, backend: Backend, num_workers_each: int) -> None:
        self._learner = learner
        self._backend: Backend = backend
        self._num_workers_each = num_workers_each

    def weights_changed(self) -> None:
        """The ranks send what they have."""

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        if not engines:
            return {}
        failure = await self._learner.send_weights(engines, version, self._backend, self._num_workers_each)
        return {} if failure is None else dict.fromkeys(engines, failure)
