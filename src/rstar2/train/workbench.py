"""The parts of a training run, opened and closed together: sandbox, engines, driver, grader, learner.

In this module they are all on one machine: the engine reads the trainer's own weights, the sandbox runs beside them.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from rstar2.agent import ChatFormat
from rstar2.config import Recipe
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.embedded.weights import share_weights
from rstar2.engine.process.shared import SharedEngine
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.request import RollsInSteps
from rstar2.rollout.setup import open_roller, open_shared_roller
from rstar2.sandbox.local import usable_cores
from rstar2.train.learning.learner import Learner, SoloLearner
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.memory.division import Division
from rstar2.train.memory.gpu import divide_gpu, limited_trainer
from rstar2.train.policy.policy import compute_dtype, load_policy
from rstar2.train.reporting.gpu_use import GpuWatch

CORES_PER_WORKER = 2
"""Cores for each rollout process beside a GPU: one for itself, one for the sandbox (which is busy while the process
waits), the engine and the learner."""
MAX_WORKERS = 8
MICRO_BATCH_TOKENS = 16_384
"""The size of a micro-batch if neither the recipe nor a GPU's memory decides it."""


class Workbench(Protocol):
    @property
    def roller(self) -> RollsInSteps: ...

    @property
    def learner(self) -> Learner: ...

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens of one forward and backward pass: the recipe's value, or as many as there is memory for."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user on what was chosen for the run."""
        ...

    def collecting(self) -> AbstractAsyncContextManager[None]:
        """A context to be held while the rollouts of one step are collected."""
        ...

    def learning(self, version: int) -> AbstractAsyncContextManager[None]:
        """Inside it the learner may change its weights. After it the engines generate with them, as `version`."""
        ...

    @property
    def weights(self) -> str:
        """The id of the weights that every engine has (`Learner.weights_id`); empty during a weight sync."""
        ...

    def gpu_use(self) -> dict[str, float]:
        """Metrics of the GPU since the last call; none if it cannot be measured."""
        ...


OpenWorkbench = Callable[[Recipe, Path, ChatFormat], AbstractAsyncContextManager[Workbench]]
"""Opens a workbench from a recipe, the folder of its model and its chat format."""


class SoloWorkbench:
    def __init__(
        self,
        rank: LearnerRank,
        engine: EmbeddedEngine | SharedEngine,
        roller: RollsInSteps,
        gpu: GpuWatch,
        recipe: Recipe,
        division: Division | None,
    ) -> None:
        learns_concurrently = recipe.train.max_staleness > 0
        self.roller = roller
        self.micro_batch_tokens = recipe.train.micro_batch_tokens or MICRO_BATCH_TOKENS
        self.notes = () if division is None else (division.sentence,)
        self.learner = SoloLearner(rank, concurrent=learns_concurrently)
        self._rank = rank
        self._engine = engine
        self._gpu = gpu
        self._learns_concurrently = learns_concurrently
        self._gives_cache_back = division is not None and division.gives_cache_back
        self._between_steps = asyncio.Lock()
        self.weights = rank.weights_id()

    def collecting(self) -> AbstractAsyncContextManager[None]:
        return self._between_steps

    def gpu_use(self) -> dict[str, float]:
        return self._gpu.use()

    @asynccontextmanager
    async def learning(self, version: int) -> AsyncIterator[None]:
        """Pauses the engine during the update. Weights learnt concurrently with sampling are synced between two steps
        instead: one policy samples all rollouts of a step, so samples do not depend on timing."""
        if not self._learns_concurrently:
            async with self._engine.paused_for_weight_sync(version):
                yield
                self._publish()
                if self._gives_cache_back:
                    torch.cuda.empty_cache()  # the engine takes this memory for its cache
            return
        yield
        async with self._between_steps, self._engine.paused_for_weight_sync(version):
            self._publish()

    def _publish(self) -> None:
        """Syncs the weights to the engine; no rollout may run meanwhile."""
        self._rank.policy.publish()
        self.weights = self._rank.weights_id()


@asynccontextmanager
async def open_solo_workbench(recipe: Recipe, folder: Path, chat: ChatFormat) -> AsyncIterator[Workbench]:
    device = choose_device(recipe.model.device)
    num_workers = count_workers(recipe, device)
    division = None
    if device.type == "cuda":
        itemsize = compute_dtype(recipe, device).itemsize
        division = divide_gpu(recipe, folder, device, itemsize, max(1, num_workers))
        recipe = division.settle(recipe)
    options = engine_options(recipe, gives_cache_back=division is not None and division.gives_cache_back)
    async with AsyncExitStack() as stack:
        gpu = stack.enter_context(GpuWatch(device))
        if num_workers:
            if division is not None:
                stack.enter_context(limited_trainer(division, device))
            rank, engine, farm = await _open_farm(stack, recipe, folder, options, num_workers)
            yield SoloWorkbench(rank, engine, farm, gpu, recipe, division)
            return
        rank = _load_rank(folder, recipe)
        alone = EmbeddedEngine.on_model(rank.policy.served, options)
        stack.push_async_callback(alone.close)
        roller = await stack.enter_async_context(open_roller(recipe, chat, alone))
        yield SoloWorkbench(rank, alone, roller, gpu, recipe, division)


def _load_rank(folder: Path, recipe: Recipe) -> LearnerRank:
    rank = LearnerRank(load_policy(folder, recipe), recipe.train.weight_decay)
    if rank.policy.device.type == "cuda":
        torch.cuda.empty_cache()  # frees parts of the model that were joined into others
    return rank


def count_workers(recipe: Recipe, device: torch.device) -> int:
    """The number of rollout processes. Beside a GPU the Python interpreter is the bottleneck, so the engine and the
    rollouts get processes of their own."""
    if recipe.rollout.num_workers is not None:
        return recipe.rollout.num_workers
    if device.type != "cuda":
        return 0
    return max(1, min(MAX_WORKERS, usable_cores() // CORES_PER_WORKER))


async def _open_farm(
    stack: AsyncExitStack, recipe: Recipe, folder: Path, options: EmbeddedOptions, num_workers: int
) -> tuple[LearnerRank, SharedEngine, RollerFarm]:
    """Opens the learner, its engine, and the rollout processes, which start up while the model is read."""
    pairs = [socket.socketpair() for _ in range(num_workers)]
    guests = [theirs for _, theirs in pairs]

    async def load() -> tuple[LearnerRank, SharedEngine]:
        try:
            rank = await asyncio.to_thread(_load_rank, folder, recipe)
            engine = await SharedEngine.start(share_weights(rank.policy.served), options, guests)
        finally:
            for guest in guests:  # owned by the engine from now on: if it ends, the workers must see that
                guest.close()
        stack.push_async_callback(engine.close)
        return rank, engine

    make = partial(open_shared_roller, recipe, folder, num_workers)
    opening = RollerFarm.opened(make, [ours for ours, _ in pairs])
    loaded, farm = await asyncio.gather(load(), stack.enter_async_context(opening), return_exceptions=True)
    if isinstance(loaded, BaseException):
        raise loaded
    if isinstance(farm, BaseException):
        raise farm
    return *loaded, farm


def engine_options(recipe: Recipe, *, gives_cache_back: bool = False) -> EmbeddedOptions:
    return EmbeddedOptions(
        max_running=recipe.engine.max_batch,
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=recipe.engine.kv_cache_tokens,
        gpu_memory_share=recipe.engine.gpu_memory_share,
        max_prefill_tokens=recipe.engine.prefill_chunk_tokens,
        gives_cache_back=gives_cache_back,
        batch_invariant=recipe.engine.batch_invariant,
        seed=recipe.seed,
    )
