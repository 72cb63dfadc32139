"""What a training run works with, opened together and closed together: sandbox, engines, driver, grader, learner.

Here they are all on one machine: the engine reads the trainer's own weights, the sandbox runs beside them.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol

import torch

from rstar2.agent import PYTHON_TOOLS, AgentLimits, ChatFormat, Transcript
from rstar2.config import Recipe, Stage
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.process.shared import SharedEngine
from rstar2.records import Problem
from rstar2.rollout.farm import OpenRoller, RollerFarm
from rstar2.rollout.request import RollsInSteps
from rstar2.sandbox.local import usable_cores
from rstar2.train.gpu_use import GpuWatch
from rstar2.train.learner import Learner, SoloLearner
from rstar2.train.learner_rank import LearnerRank
from rstar2.train.policy import load_policy
from rstar2.train.rolling import ENGINE_NAME, Share, open_roller, open_shared_roller

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

    def gpu_busy_share(self) -> float | None:
        """Of the time since it was last asked; None where that cannot be told."""
        ...


OpenWorkbench = Callable[[Recipe, Path, ChatFormat], AbstractAsyncContextManager[Workbench]]
"""From a recipe, the folder of its model and its chat format."""


class SoloWorkbench:
    def __init__(
        self,
        rank: LearnerRank,
        engines: Sequence[EmbeddedEngine | SharedEngine],
        roller: RollsInSteps,
        gpu: GpuWatch,
        *,
        learns_aside: bool,
    ) -> None:
        self.roller = roller
        self.learner = SoloLearner(rank, aside=learns_aside)
        self._rank = rank
        self._engines = engines
        self._gpu = gpu
        self._learns_aside = learns_aside
        self._between_steps = asyncio.Lock()

    def collecting(self) -> AbstractAsyncContextManager[None]:
        return self._between_steps

    def gpu_busy_share(self) -> float | None:
        return self._gpu.share()

    @asynccontextmanager
    async def learning(self, version: int) -> AsyncIterator[None]:
        """Engines stand still. What is learnt aside from their weights they are given between two steps: all rollouts
        of a step are sampled by the same policy, so what is sampled does not hang on how fast anybody was."""
        if not self._learns_aside:
            async with self._standing_still(version):
                yield
                self._rank.policy.publish()
            return
        yield
        async with self._between_steps, self._standing_still(version):
            self._rank.policy.publish()

    @asynccontextmanager
    async def _standing_still(self, version: int) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                await stack.enter_async_context(engine.learning(version))
            yield


@asynccontextmanager
async def open_solo_workbench(recipe: Recipe, folder: Path, chat: ChatFormat) -> AsyncIterator[Workbench]:
    rank = LearnerRank(load_policy(folder, recipe), recipe.train.weight_decay)
    learns_aside = recipe.train.max_staleness > 0
    async with AsyncExitStack() as stack:
        gpu = stack.enter_context(GpuWatch(rank.policy.device))
        num_workers = count_workers(recipe, rank.policy.device)
        if num_workers:
            engines, farm = await _open_farm(stack, rank, recipe, folder, chat, num_workers)
            yield SoloWorkbench(rank, engines, farm, gpu, learns_aside=learns_aside)
            return
        alone = EmbeddedEngine.on_model(rank.policy.served, engine_options(recipe))
        stack.push_async_callback(alone.close)
        roller = await stack.enter_async_context(open_roller(recipe, chat, alone))
        yield SoloWorkbench(rank, [alone], roller, gpu, learns_aside=learns_aside)


def count_workers(recipe: Recipe, device: torch.device) -> int:
    """Beside a GPU the interpreter is what everybody waits for: the engine gets one of its own, and so do rollouts."""
    if recipe.rollout.num_workers is not None:
        return recipe.rollout.num_workers
    num_processes = recipe.engine.num_processes
    if device.type != "cuda":
        return num_processes if num_processes > 1 else 0
    return max(num_processes, min(MAX_WORKERS, usable_cores() // CORES_PER_WORKER))


async def _open_farm(
    stack: AsyncExitStack, rank: LearnerRank, recipe: Recipe, folder: Path, chat: ChatFormat, num_workers: int
) -> tuple[Sequence[SharedEngine], RollerFarm]:
    """Engines and the processes of rollouts, which are started at the same time."""
    num_engines = recipe.engine.num_processes
    parties: list[list[socket.socket]] = [[] for _ in range(num_engines)]
    places: list[tuple[OpenRoller, socket.socket]] = []
    for number in range(num_workers):
        ours, theirs = socket.socketpair()
        parties[number % num_engines].append(theirs)
        share = _share_of(number, num_workers, num_engines)
        places.append((partial(open_shared_roller, recipe, folder, share), ours))

    async def start_engines() -> Sequence[SharedEngine]:
        try:
            engines = await SharedEngine.start_several(rank.policy.served, engine_options(recipe, num_engines), parties)
        finally:
            for guest in chain.from_iterable(parties):  # the engine's from now on: should it end, workers must see it
                guest.close()
        for engine in engines:
            stack.push_async_callback(engine.close)
        return engines

    def count_prompt_tokens(problem: Problem) -> int:
        return len(Transcript.start(chat, problem.problem, [PYTHON_TOOLS[recipe.agent.tool].schema]).prompt_ids)

    opening = stack.enter_async_context(RollerFarm.opened(places, count_prompt_tokens))
    engines, farm = await asyncio.gather(start_engines(), opening, return_exceptions=True)
    for started in (engines, farm):
        if isinstance(started, BaseException):
            raise started
    assert not isinstance(engines, BaseException) and not isinstance(farm, BaseException)
    return engines, farm


def _share_of(number: int, num_workers: int, num_engines: int) -> Share:
    """Workers go to engines in turn."""
    engine = number % num_engines
    name = ENGINE_NAME if num_engines == 1 else f"{ENGINE_NAME}-{engine}"
    return Share(name, len(range(engine, num_workers, num_engines)), num_workers)


def agent_limits(recipe: Recipe, stage: Stage) -> AgentLimits:
    return AgentLimits(
        max_turns=stage.max_turns,
        max_response_tokens=stage.max_response_tokens,
        max_tool_output_tokens=recipe.agent.max_tool_output_tokens,
        max_fault_retries=recipe.rollout.max_fault_retries,
        tool_deadline_s=tool_deadline_s(recipe),
    )


def tool_deadline_s(recipe: Recipe) -> float:
    """Above the sandbox's own queue and wall clock, so that it is the sandbox that stops what is late, and says why."""
    return recipe.sandbox.queue_s + recipe.sandbox.limits.wall_s + 30.0


def engine_options(recipe: Recipe, num_sharers: int = 1) -> EmbeddedOptions:
    """Of one of so many engines that share a device."""
    engine = recipe.engine
    return EmbeddedOptions(
        max_running=engine.max_batch // num_sharers,
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=engine.kv_cache_tokens and engine.kv_cache_tokens // num_sharers,
        gpu_memory_share=engine.gpu_memory_share / num_sharers,
        max_prefill_tokens=engine.prefill_chunk_tokens,
        seed=recipe.seed,
    )
