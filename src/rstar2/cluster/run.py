"""A training run on a cluster, which resumes when a rank of the learner is lost.

Engines and sandbox nodes are replaced while the run continues. A rank holds the only copy of its shard of the weights:
when it is lost, the run resumes from its last checkpoint, in this same process. Finished rollouts are reused.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rstar2.agent import ChatFormat
from rstar2.cluster.supervise import num_checkpoints
from rstar2.cluster.workbench import open_cluster_workbench
from rstar2.config import Recipe
from rstar2.engine.remote.client import SILENCE_S
from rstar2.errors import InfrastructureError
from rstar2.train import Observer, Prepared, prepare_resumed, train
from rstar2.train.learning.learner import LearnerLost
from rstar2.train.run import check_cluster
from rstar2.train.workbench import Workbench

MAX_LOSSES_WITHOUT_PROGRESS = 5
"""If ranks are lost this often before a checkpoint is saved, the cause is one that a retry does not fix."""
PAUSE_S = 15.0
"""The pause after repeated losses without progress: Ray needs a while to see that a machine is lost."""
REPLACEMENT_S = 1800.0
"""How long a run waits for a machine that takes the place of a lost one."""


async def train_on_cluster(
    prepared: Prepared, observer: Observer, argv: Sequence[str] | None = None, silence_s: float = SILENCE_S
) -> None:
    """Trains to the end of the recipe, on the Ray that this process is connected to."""
    num_losses, last_seen = 0, -1

    def open_workbench(recipe: Recipe, folder: Path, chat: ChatFormat) -> AbstractAsyncContextManager[Workbench]:
        grow_timeout_s = REPLACEMENT_S if num_losses else 0.0
        return open_cluster_workbench(
            recipe, folder, chat, observer.say, silence_s=silence_s, grow_timeout_s=grow_timeout_s
        )

    while True:
        try:
            await train(prepared, observer, argv, open_workbench)
            return
        except LearnerLost as error:
            seen = num_checkpoints(prepared.folder)
            num_losses = num_losses + 1 if seen == last_seen else 1
            last_seen = seen
            if num_losses == MAX_LOSSES_WITHOUT_PROGRESS:
                raise InfrastructureError(
                    f"{error}, the {num_losses}th time without a checkpoint in between: what was saved is kept"
                ) from error
            observer.say(f"{error}: the run resumes from its last checkpoint")
            await asyncio.sleep(PAUSE_S if num_losses > 1 else 0.0)
            prepared = prepare_resumed(prepared.folder, check_cluster)
