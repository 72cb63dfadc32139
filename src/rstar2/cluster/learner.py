"""The learner as ranks on many machines, all of which get the same calls.

Invariant: a call returns when every rank has returned. If a rank dies, its shard of the weights is lost: the others are
killed too, since they would wait for it, and every caller gets `LearnerLost`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from rstar2.cluster.actors import ActorFailed, ActorLost, answer, kill, start_in_bundle
from rstar2.cluster.placement import Placement
from rstar2.cluster.rank_actor import RankActor
from rstar2.config import Recipe
from rstar2.engine.vllm.transfer import Backend
from rstar2.errors import InfrastructureError
from rstar2.train.learning.learner import LearnerLost
from rstar2.train.learning.sft import SftSettings
from rstar2.train.learning.sft_examples import Example
from rstar2.train.learning.update import Rollout, UpdateSettings

START_S = 1800.0
"""Timeout of the ranks' start: a large model is read from a shared disk."""
SEND_S = 1500.0
"""Timeout of sending weights: longer than the steps of a transfer, each of which has its own; beyond it, a rank
hangs."""


class RankedLearner:
    """Satisfies `Learner`. Made by `start`."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = list(actors)
        self._examples: Sequence[Example] | None = None

    @classmethod
    async def start(
        cls, recipe: Recipe, folder: Path, group: PlacementGroup, placement: Placement, num_threads: int
    ) -> "RankedLearner":
        size = len(placement.rank_bundles)
        actors = [
            start_in_bundle(
                RankActor,
                (number, size, num_threads),
                group,
                bundle,
                num_gpus=placement.gpus_per_rank,
                is_concurrent=False,
            )
            for number, bundle in enumerate(placement.rank_bundles)
        ]
        learner = cls(actors)
        try:
            async with asyncio.timeout(START_S):
                rendezvous = await learner._answer(actors[0].rendezvous.remote())
                await learner._all("start", _absolute(folder), recipe, rendezvous)
        except TimeoutError:
            learner.close()
            raise InfrastructureError(f"the trainer ranks were not ready after {START_S:g} s") from None
        except BaseException:
            learner.close()
            raise
        return learner

    async def warm_up_step(
        self, examples: Sequence[Example], step: int, settings: SftSettings, seed: int
    ) -> dict[str, float]:
        if self._examples is not examples:
            await self._all("take_examples", ray.put(examples))
            self._examples = examples
        values: dict[str, float] = await self._all("warm_up_step", step, settings, seed)
        return values

    async def update(
        self, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, lr: float, seed: int
    ) -> dict[str, float]:
        values: dict[str, float] = await self._all("update", ray.put(groups), settings, lr, seed)
        return values

    async def reset_optimizer(self) -> None:
        await self._all("reset_optimizer")

    async def weights_id(self) -> str:
        name: str = await self._all("weights_id")
        return name

    async def save(self, folder: Path) -> None:
        await self._all("save", _absolute(folder))

    async def load(self, folder: Path) -> None:
        await self._all("load", _absolute(folder))

    async def hold_reference(self, file: Path) -> None:
        await self._all("hold_reference", _absolute(file))

    async def export(self, folder: Path) -> None:
        await self._all("export", _absolute(folder))

    async def pack_weights(self) -> list[Any]:
        """Packs the weights that engines serve, and returns references to them in Ray's shared memory."""
        references: list[Any] = await self._all("pack_weights")
        return references

    async def send_weights(
        self, engines: Mapping[str, Any], version: int, backend: Backend, num_workers_each: int
    ) -> str | None:
        """Sends the weights to the workers of these vLLM engines. Returns why one of them failed, if one did."""
        try:
            async with asyncio.timeout(SEND_S):
                failure: str | None = await self._all("send_weights", dict(engines), version, backend, num_workers_each)
        except TimeoutError:
            self.close()
            raise LearnerLost(f"the trainer ranks did not come back from sending weights in {SEND_S:g} s") from None
        return failure

    async def release_memory(self) -> None:
        """Releases cached memory of the ranks' GPUs."""
        await self._all("release_memory")

    def close(self) -> None:
        for actor in self._actors:
            kill(actor)

    async def _all(self, method: str, *arguments: Any) -> Any:
        """Calls a method of every rank, awaits all answers, and returns that of the first rank."""
        calls = [
            asyncio.ensure_future(self._answer(getattr(actor, method).remote(*arguments))) for actor in self._actors
        ]
        try:
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            for call in calls:
                call.cancel()
            raise
        errors = [error for call in done if (error := call.exception()) is not None]
        if errors:
            # The other ranks may wait for one that failed: a collective cannot be left.
            for call in calls:
                call.cancel()
            lost = next((error for error in errors if isinstance(error, LearnerLost)), None)
            if lost is not None:
                self.close()
            raise lost or errors[0]
        return calls[0].result()

    async def _answer(self, call: Any) -> Any:
        try:
            return await answer(call)
        except (ActorLost, ActorFailed) as error:
            # A rank whose peer died in a collective fails before Ray has noticed the death.
            raise LearnerLost(f"a trainer rank is lost ({error})") from error


def _absolute(path: Path) -> Path:
    """The absolute path, because ranks have other working directories."""
    return path.absolute()
