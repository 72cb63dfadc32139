"""What a training run works with, opened together and closed together: sandbox, engines, driver, grader, learner.

Here they are all on one machine: the engine reads the trainer's own weights, the sandbox runs beside them.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from rstar2.agent import ChatFormat, Transcript
from rstar2.config import Recipe
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.process.shared import SharedEngine
from rstar2.extensions import TOOLS
from rstar2.records import Problem
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.request import RollsInSteps
from rstar2.rollout.setup import open_roller, open_shared_roller
from rstar2.sandbox.local import usable_cores
from rstar2.train.learning.learner import Learner, SoloLearner
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.policy.policy import load_policy
from rstar2.train.reporting.gpu_use import GpuWatch

CORES_PER_WORKER = 2
"""Beside a GPU: as many again are for the sandbox, which is busy when they wait, for the engine and the learner."""
MAX_WORKERS = 8


class Workbench(Protocol):
    @property
    def roller(self) -> RollsInSteps: ...

    @property
    def learner(self) -> Learner: ...

    def collecting(self) -> AbstractAsyncContextManager[None]:
        """Held while the rollouts of one step are collected."""
        ...

    def learning(self, version: int) -> AbstractAsyncContextManager[None]:
        """Inside it the learner may change its weights. After it the engines generate with them, as `version`."""
        ...

    @property
    def weights(self) -> str:
        """Which weights every engine has (`Learner.weights_id`); nothing while they are given others."""
        ...

    def gpu_busy_share(self) -> float | None:
        """The share of the time since the last call; None if it cannot be measured."""
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
        *,
        learns_concurrently: bool,
    ) -> None:
        self.roller = roller
        self.learner = SoloLearner(rank, concurrent=learns_concurrently)
        self._rank = rank
        self._engine = engine
        self._gpu = gpu
        self._learns_concurrently = learns_concurrently
        self._between_steps = asyncio.Lock()
        self.weights = rank.weights_id()

    def collecting(self) -> AbstractAsyncContextManager[None]:
        return self._between_steps

    def gpu_busy_share(self) -> float | None:
        return self._gpu.share()

    @asynccontextmanager
    async def learning(self, version: int) -> AsyncIterator[None]:
        """The engine is paused. Weights that were learnt concurrently with sampling are synced between two steps: one
        policy samples all rollouts of a step, so what is sampled does not depend on how fast anything ran."""
        if not self._learns_concurrently:
            async with self._engine.paused_for_weight_sync(version):
                yield
                self._publish()
            return
        yield
        async with self._between_steps, self._engine.paused_for_weight_sync(version):
            self._publish()

    def _publish(self) -> None:
        """No rollout runs meanwhile."""
        self._rank.policy.publish()
        self.weights = self._rank.weights_id()


@asynccontextmanager
async def open_solo_workbench(recipe: Recipe, folder: Path, chat: ChatFormat) -> AsyncIterator[Workbench]:
    device = choose_device(recipe.model.device)
    learns_concurrently = recipe.train.max_staleness > 0
    num_workers = count_workers(recipe, device)
    async with AsyncExitStack() as stack:
        gpu = stack.enter_context(GpuWatch(device))
        if num_workers:
            rank, engine, farm = await _open_farm(stack, recipe, folder, chat, num_workers)
            yield SoloWorkbench(rank, engine, farm, gpu, learns_concurrently=learns_concurrently)
            return
        rank = _load_rank(folder, recipe)
        alone = EmbeddedEngine.on_model(rank.policy.served, engine_options(recipe))
        stack.push_async_callback(alone.close)
        roller = await stack.enter_async_context(open_roller(recipe, chat, alone))
        yield SoloWorkbench(rank, alone, roller, gpu, learns_concurrently=learns_concurrently)


def _load_rank(folder: Path, recipe: Recipe) -> LearnerRank:
    return LearnerRank(load_policy(folder, recipe), recipe.train.weight_decay)


def count_workers(recipe: Recipe, device: torch.device) -> int:
    """With a GPU, the interpreter is the bottleneck: the engine gets its own process, and so do rollouts."""
    if recipe.rollout.num_workers is not None:
        return recipe.rollout.num_workers
    if device.type != "cuda":
        return 0
    return max(1, min(MAX_WORKERS, usable_cores() // CORES_PER_WORKER))


async def _open_farm(
    stack: AsyncExitStack, recipe: Recipe, folder: Path, chat: ChatFormat, num_workers: int
) -> tuple[LearnerRank, SharedEngine, RollerFarm]:
    """The learner, its engine, and the rollout processes, which get ready while the model is read."""
    pairs = [socket.socketpair() for _ in range(num_workers)]
    guests = [theirs for _, theirs in pairs]

    async def load() -> tuple[LearnerRank, SharedEngine]:
        try:
            rank = await asyncio.to_thread(_load_rank, folder, recipe)
            engine = await SharedEngine.start(rank.policy.served, engine_options(recipe), guests)
        finally:
            for guest in guests:  # the engine's from now on: should it end, the workers must see it
                guest.close()
        stack.push_async_callback(engine.close)
        return rank, engine

    def count_prompt_tokens(problem: Problem) -> int:
        return len(Transcript.start(chat, problem.problem, [TOOLS.load(recipe.agent.tool).schema]).prompt_ids)

    make = partial(open_shared_roller, recipe, folder, num_workers)
    opening = RollerFarm.opened(make, [ours for ours, _ in pairs], count_prompt_tokens)
    loaded, farm = await asyncio.gather(load(), stack.enter_async_context(opening), return_exceptions=True)
    if isinstance(loaded, BaseException):
        raise loaded
    if isinstance(farm, BaseException):
        raise farm
    return *loaded, farm


def engine_options(recipe: Recipe) -> EmbeddedOptions:
    return EmbeddedOptions(
        max_running=recipe.engine.max_batch,
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=recipe.engine.kv_cache_tokens,
        gpu_memory_share=recipe.engine.gpu_memory_share,
        max_prefill_tokens=recipe.engine.prefill_chunk_tokens,
        seed=recipe.seed,
    )
