"""The learning of one process: its share among the ranks, or all of it when it is alone.

Invariant: every rank calls the same methods with the same arguments in the same order, and ends each of them with the
same result: the metrics, the clipped gradient and the decision to skip a step are those of all ranks together.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from rstar2.errors import UserError
from rstar2.train.checkpoints.checkpoint import write_errors
from rstar2.train.checkpoints.durable import sync, sync_tree
from rstar2.train.checkpoints.export import ADAPTER_FOLDER, write_adapter, write_model
from rstar2.train.learning.optimizer import Optimizer, weight_key
from rstar2.train.learning.reference import Reference
from rstar2.train.learning.sft import SftSettings, sft_step
from rstar2.train.learning.sft_examples import Example
from rstar2.train.learning.update import Rollout, UpdateSettings, token_work, update_policy
from rstar2.train.learning.work import TokenWork, attention_flop, product_flop
from rstar2.train.memory.sizes import ModelSizes
from rstar2.train.policy.policy import Policy
from rstar2.train.policy.weights_id import weights_id
from rstar2.train.reporting.gpu_use import product_rate
from rstar2.train.sharding.ranks import ALONE, Ranks
from rstar2.train.sharding.shard_files import read_shards, stored_shapes, write_shards


class LearnerRank:
    def __init__(self, policy: Policy, weight_decay: float, ranks: Ranks = ALONE) -> None:
        self.policy = policy
        self._ranks = ranks
        self._optimizer = Optimizer(policy.parameters(), weight_decay)
        self._product_rate = product_rate(policy.device, policy.dtype) if policy.device.type == "cuda" else None
        self._reference: Reference | None = None
        """The reference policy of the KL term; None without one."""

    def warm_up_step(
        self, examples: Sequence[Example], step: int, settings: SftSettings, seed: int
    ) -> dict[str, float]:
        """One optimizer step of the warm-up, counted from 0."""
        self._seed_dropout(seed)
        with _memory_errors(settings.micro_batch_tokens):
            return sft_step(self.policy, self._optimizer, examples, step, settings, self._ranks)

    def update(
        self, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, lr: float, seed: int
    ) -> dict[str, float]:
        """All optimizer steps on one batch of groups; the metrics are means over them."""
        self._seed_dropout(seed)
        began_s = time.monotonic()
        with _memory_errors(settings.micro_batch_tokens):
            values = update_policy(self.policy, self._optimizer, groups, settings, lr, self._reference, self._ranks)
        if self._product_rate is not None:
            values |= self._speed(token_work(self.policy, groups, settings), time.monotonic() - began_s)
        return values

    def _speed(self, work: TokenWork, seconds: float) -> dict[str, float]:
        """The update's speed in tokens, and its model FLOPs utilization: its work, without recomputation, over the
        GPU's rate."""
        assert self._product_rate is not None
        sizes, is_full = ModelSizes.of(self.policy.network.config), self.policy.adapters is None
        flop = product_flop(work, sizes, is_full=is_full) + attention_flop(work, sizes)
        return {
            "trained_tokens_per_s": work.num_trained / seconds,
            "mfu": flop / seconds / self._ranks.size / self._product_rate,
        }

    def _seed_dropout(self, seed: int) -> None:
        """Seed the ranks differently: each drops other inputs."""
        torch.manual_seed(seed + self._ranks.rank)

    def reset_optimizer(self) -> None:
        self._optimizer.reset()

    def weights_id(self) -> str:
        """The id of the weights that all ranks have together."""
        return weights_id(self.policy.parameters(), self._ranks)

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer into a folder that exists. If one rank cannot, CannotWrite is raised on all."""
        write_shards(folder, self._optimizer.state_dict(), self._ranks)

    def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Reads what any number of ranks saved; without the optimizer's moments if `weights_only`."""
        shapes = stored_shapes(folder)
        room = self._optimizer.room_for(() if weights_only else shapes)
        _require_same_model(shapes, room)
        read_shards(folder, room, self._ranks)
        self._optimizer.load_state_dict(room)

    def hold_reference(self, path: Path) -> None:
        """Keep the policy stored at `path` as the KL term's reference. If nothing is there, the present policy is
        stored first."""
        reference = Reference(self.policy)
        tensors = {weight_key(name): tensor for name, tensor in reference.state.items()}
        if path.exists():
            read_shards(path, tensors, self._ranks)
        else:
            self._store_whole(path, tensors)
        self._reference = reference

    def _store_whole(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Writes the tensors to `path`, which is complete or absent whatever happens."""
        unfinished = path.with_name(f".{path.name}")
        with write_errors(path):
            write_shards(unfinished, tensors, self._ranks)
            if self._ranks.rank == 0:
                sync_tree(unfinished)
                unfinished.rename(path)
                sync(path.parent)
        self._ranks.wait()

    def served_state(self) -> Iterator[tuple[str, Tensor]]:
        """The weights that engines serve: full tensors under the names of the Hugging Face checkpoint, adapters merged
        in, on the policy's device. Every rank must iterate over all of them, and gets the same."""
        return self.policy.served_state()

    def export(self, folder: Path) -> None:
        """Writes the served model as a Hugging Face folder. Every rank must call it; the first one writes."""
        is_writer = self._ranks.rank == 0
        write_model(folder, self.policy, is_writer=is_writer)
        if self.policy.adapters is not None:
            write_adapter(folder / ADAPTER_FOLDER, self.policy, is_writer=is_writer)
        self._ranks.wait()


def _require_same_model(stored: dict[str, torch.Size], room: dict[str, Tensor]) -> None:
    is_weight = weight_key("")
    if {name for name in stored if name.startswith(is_weight)} != {name for name in room if name.startswith(is_weight)}:
        raise UserError("the checkpoint is of another model: its parameters have other names")
    for name, tensor in room.items():
        if stored[name] != tensor.shape:
            raise UserError(f"the checkpoint is of another model: {name.removeprefix(is_weight)} has another shape")


@contextmanager
def _memory_errors(micro_batch_tokens: int) -> Iterator[None]:
    """Turns a CUDA out-of-memory error, which other users of the GPU may cause, into a UserError that names the
    field."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise UserError(
            f"train.micro_batch_tokens: the GPU has too little memory for an update of {micro_batch_tokens} tokens at "
            f"a time ({reason}); resume when it has more, or start a run with {micro_batch_tokens // 2}"
        ) from error
