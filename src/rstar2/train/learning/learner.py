"""The interface between the run and the holder of its weights: this process, or ranks on many machines.

Everything is awaited, because ranks may be elsewhere. A learner that cannot continue raises `LearnerLost`: the
weights since the last checkpoint are lost, and the run resumes from there.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rstar2.errors import InfrastructureError
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.learning.sft import SftSettings
from rstar2.train.learning.sft_examples import Example
from rstar2.train.learning.update import Rollout, UpdateSettings


class LearnerLost(InfrastructureError):  # noqa: N818
    """A part of the weights or of the optimizer is lost."""


class Learner(Protocol):
    async def warm_up_step(
        self, examples: Sequence[Example], step: int, settings: SftSettings, seed: int
    ) -> dict[str, float]:
        """One optimizer step of the warm-up, counted from 0."""
        ...

    async def update(
        self, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, lr: float, seed: int
    ) -> dict[str, float]:
        """All optimizer steps on one batch of groups; the metrics are means over them."""
        ...

    async def reset_optimizer(self) -> None: ...

    async def weights_id(self) -> str:
        """The id of the learner's weights: equal exactly if all their bits are equal."""
        ...

    async def save(self, folder: Path) -> None:
        """Write the tensors of a checkpoint into a folder that exists."""
        ...

    async def load(self, folder: Path) -> None:
        """Read the tensors of a checkpoint, whatever number of ranks wrote it."""
        ...

    async def hold_reference(self, file: Path) -> None:
        """Keep the policy stored in `file` as the KL term's reference. If there is no such file, the present policy is
        stored there first."""
        ...

    async def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder."""
        ...


class SoloLearner:
    """Satisfies `Learner` in this process. It blocks the process while it learns, unless it is `concurrent`: then it
    learns in a separate thread while rollouts are sampled."""

    def __init__(self, rank: LearnerRank, *, concurrent: bool = False) -> None:
        self._rank = rank
        self._concurrent = concurrent

    async def warm_up_step(
        self, examples: Sequence[Example], step: int, settings: SftSettings, seed: int
    ) -> dict[str, float]:
        return self._rank.warm_up_step(examples, step, settings, seed)

    async def update(
        self, groups: Sequence[Sequence[Rollout]], settings: UpdateSettings, lr: float, seed: int
    ) -> dict[str, float]:
        if self._concurrent:
            return await asyncio.to_thread(self._rank.update, groups, settings, lr, seed)
        return self._rank.update(groups, settings, lr, seed)

    async def reset_optimizer(self) -> None:
        self._rank.reset_optimizer()

    async def weights_id(self) -> str:
        return self._rank.weights_id()

    async def save(self, folder: Path) -> None:
        self._rank.save(folder)

    async def load(self, folder: Path) -> None:
        self._rank.load(folder)

    async def hold_reference(self, file: Path) -> None:
        self._rank.hold_reference(file)

    async def export(self, folder: Path) -> None:
        self._rank.export(folder)
