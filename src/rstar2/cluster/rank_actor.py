"""One rank of the learner on one machine of the cluster, as a Ray actor that runs one call after the other."""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

from rstar2.cluster.actors import machine_address
from rstar2.cluster.parcels import parcels
from rstar2.cluster.rank_transfer import RankTransfer
from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.vllm.transfer import Backend, ServedWeights, open_sender
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.learning.sft import SftSettings
from rstar2.train.learning.sft_examples import Example
from rstar2.train.learning.update import Rollout, UpdateSettings
from rstar2.train.policy.served_weights import served_shapes
from rstar2.train.sharding.fsdp import load_sharded_policy
from rstar2.train.sharding.ranks import joined


class RankActor:
    """A rank as an actor. `RankedLearner` makes it remote, and calls every rank alike."""

    def __init__(self, number: int, size: int, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._number = number
        self._size = size
        self._stack = ExitStack()
        self._rank: LearnerRank | None = None
        self._transfer: RankTransfer | None = None
        self._examples: Sequence[Example] = ()

    def rendezvous(self) -> str:
        """An address on this machine for the ranks' process group."""
        host, port = _free_address()
        return f"tcp://{host}:{port}"

    def start(self, folder: Path, recipe: Recipe, rendezvous: str) -> None:
        """Joins the other ranks, and loads this rank's shard of the model."""
        ranks = self._stack.enter_context(
            joined(self._number, self._size, rendezvous, choose_device(recipe.model.device))
        )
        policy = load_sharded_policy(folder, recipe, ranks)
        self._rank = LearnerRank(policy, recipe.train.weight_decay, ranks)

    def take_examples(self, examples: Sequence[Example]) -> None:
        """Keeps the examples of the warm-up, which are sent once and not with every step."""
        self._examples = examples

    def warm_up_step(self, step: int, settings: SftSettings, seed: int) -> dict[str, float]:
        return self._learner.warm_up_step(self._examples, step, settings, seed)

    def update(
        self, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, lr: float, seed: int
    ) -> dict[str, float]:
        return self._learner.update(groups, settings, lr, seed)

    def reset_optimizer(self) -> None:
        self._learner.reset_optimizer()

    def weights_id(self) -> str:
        return self._learner.weights_id()

    def save(self, folder: Path) -> None:
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        self._learner.load(folder)

    def hold_reference(self, file: Path) -> None:
        self._learner.hold_reference(file)

    def export(self, folder: Path) -> None:
        self._learner.export(folder)

    def pack_weights(self) -> list[Any]:
        """References to the weights, as parcels; empty except on the first rank."""
        found = []
        for parcel in parcels(self._learner.served_state()):
            if self._number == 0:
                found.append(ray.put(parcel))
        return found

    def send_weights(
        self, engines: Mapping[str, Any], version: int, backend: Backend, num_workers_each: int
    ) -> str | None:
        """Sends the weights to vLLM engines: see `RankTransfer.send`."""
        if self._transfer is None:
            policy = self._learner.policy
            weights = ServedWeights(served_shapes(policy.network), policy.dtype, self._learner.served_state)
            self._transfer = RankTransfer(backend, self._number, weights, num_workers_each, open_sender, _free_address)
        try:
            return self._transfer.send(engines, version)
        finally:
            self.release_memory()

    def release_memory(self) -> None:
        """Frees the memory that torch caches on the GPU, which others need now."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @property
    def _learner(self) -> LearnerRank:
        assert self._rank is not None, "`start` comes first"
        return self._rank


def _free_address() -> tuple[str, int]:
    """A host and a free port of this machine."""
    host = machine_address()
    with socket.socket() as free:
        free.bind((host, 0))
        return host, free.getsockname()[1]
