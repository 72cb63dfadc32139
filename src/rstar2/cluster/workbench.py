"""The parts of a run on a cluster, opened and closed together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from rstar2.agent import ChatFormat
from rstar2.cluster.actors import answer, living_machines, resources
from rstar2.cluster.engine_actor import EnginePlan
from rstar2.cluster.fleet import EngineFleet
from rstar2.cluster.learner import RankedLearner
from rstar2.cluster.placement import Placement, place, require_room, transfer_backend
from rstar2.cluster.sandboxes import SandboxCluster
from rstar2.cluster.weight_sync import ObjectStoreSync, VllmTransferSync, WeightSync
from rstar2.config import Recipe
from rstar2.engine.remote.client import SILENCE_S
from rstar2.engine.vllm import VllmOptions
from rstar2.environments.executor import make_executor
from rstar2.errors import InfrastructureError, UserError
from rstar2.rollout import EngineSpeed
from rstar2.rollout.roller import Roller
from rstar2.rollout.setup import make_driver, open_roller_on
from rstar2.sandbox.pool import PoolExecutor
from rstar2.train.workbench import MICRO_BATCH_TOKENS, Workbench, engine_options

ENGINE_TIMEOUT_S = 1800.0
"""How long rollouts wait while the only engine is restarted."""
RESERVE_S = 600.0
ROOM_PERIOD_S = 2.0
NUM_CPU_THREADS = 1
"""Threads of an actor whose bundle has one core."""


class ClusterWorkbench:
    """Satisfies `Workbench`."""

    def __init__(
        self, roller: Roller, learner: RankedLearner, fleet: EngineFleet, weights: str, micro_batch_tokens: int
    ) -> None:
        self.roller = roller
        self.learner = learner
        self.weights = weights
        self.micro_batch_tokens = micro_batch_tokens
        self.notes = ()
        self._fleet = fleet

    def gpu_use(self) -> dict[str, float]:
        """Nothing is measured here: Ray's dashboard shows each GPU."""
        return {}

    def collecting(self) -> AbstractAsyncContextManager[None]:
        """Takes no lock: new weights reach the engines while rollouts run, since a long rollout would delay them."""
        return nullcontext()

    @asynccontextmanager
    async def learning(self, version: int) -> AsyncIterator[None]:
        async with self._fleet.paused_for_weight_sync(version):
            yield
            weights = await self.learner.weights_id()
            await self.learner.release_memory()
            self.weights = ""  # rollouts may run while one engine after the other gets its weights
        self.weights = weights


@asynccontextmanager
async def open_cluster_workbench(
    recipe: Recipe,
    folder: Path,
    chat: ChatFormat,
    report: Callable[[str], None],
    *,
    silence_s: float = SILENCE_S,
    grow_timeout_s: float = 0.0,
) -> AsyncIterator[Workbench]:
    """Opens the workbench. `report` is called for everything that is lost and replaced. `grow_timeout_s`: how long to
    wait until a cluster that is too small has grown."""
    cluster = recipe.cluster
    assert cluster is not None
    await _await_room(recipe, grow_timeout_s, report)
    placement = place(cluster)
    async with AsyncExitStack() as stack:
        group = await _reserve(placement)
        stack.callback(remove_placement_group, group)
        sandboxes = None
        if recipe.sandbox.base_url is None:
            sandboxes = SandboxCluster(PoolExecutor(), recipe.sandbox.num_slots, report)
            stack.push_async_callback(sandboxes.close)
            await sandboxes.start()
        executor = sandboxes.pool if sandboxes else make_executor(recipe)
        if sandboxes is None:
            stack.push_async_callback(executor.close)
        learner = await RankedLearner.start(recipe, folder, group, placement, NUM_CPU_THREADS)
        stack.callback(learner.close)
        driver = make_driver(recipe, engine_timeout_s=ENGINE_TIMEOUT_S)
        plan = _engine_plan(recipe, folder)
        fleet = EngineFleet(
            plan,
            group,
            placement,
            driver,
            _make_weight_sync(plan, learner),
            _speed(recipe),
            report,
            silence_s,
            in_turns=cluster.layout == "colocated",
        )
        stack.push_async_callback(fleet.close)
        await fleet.start()
        roller = await stack.enter_async_context(open_roller_on(recipe, driver, executor, chat))
        micro_batch_tokens = recipe.train.micro_batch_tokens or MICRO_BATCH_TOKENS
        yield ClusterWorkbench(roller, learner, fleet, await learner.weights_id(), micro_batch_tokens)


async def _await_room(recipe: Recipe, grow_timeout_s: float, report: Callable[[str], None]) -> None:
    deadline_s, has_said = time.monotonic() + grow_timeout_s, False
    while True:
        try:
            return require_room(recipe, resources(), len(living_machines()))
        except UserError as error:
            if time.monotonic() >= deadline_s:
                raise
            if not has_said:
                report(f"{error}: waiting for more")
                has_said = True
        await asyncio.sleep(ROOM_PERIOD_S)


async def _reserve(placement: Placement) -> PlacementGroup:
    group: PlacementGroup = placement_group(list(placement.bundles), strategy=placement.strategy)
    try:
        await asyncio.wait_for(answer(group.ready()), RESERVE_S)
    except TimeoutError:
        remove_placement_group(group)
        raise InfrastructureError(
            f"Ray gave no place to the run's {len(placement.bundles)} bundles within {RESERVE_S:g} s: is the cluster "
            "used by others?"
        ) from None
    return group


def _engine_plan(recipe: Recipe, folder: Path) -> EnginePlan:
    cluster, engine = recipe.cluster, recipe.engine
    assert cluster is not None
    if engine.kind == "embedded":
        return EnginePlan(folder.absolute(), engine_options(recipe), recipe.model.device, NUM_CPU_THREADS)
    options = VllmOptions(
        max_context_tokens=recipe.model.context_tokens,
        kv_cache_tokens=engine.kv_cache_tokens,
        max_running=engine.max_batch,
        max_prefill_tokens=engine.prefill_chunk_tokens,
        gpu_memory_share=engine.gpu_memory_share,
        can_sleep=cluster.num_gpus > 0 and cluster.layout == "colocated",
        transfer=transfer_backend(cluster),
        seed=recipe.seed,
    )
    return EnginePlan(folder.absolute(), options, recipe.model.device, NUM_CPU_THREADS)


def _make_weight_sync(plan: EnginePlan, learner: RankedLearner) -> WeightSync:
    options = plan.options
    if isinstance(options, VllmOptions):
        assert options.transfer is not None
        return VllmTransferSync(learner, options.transfer, options.num_gpus)
    return ObjectStoreSync(learner)


def _speed(recipe: Recipe) -> EngineSpeed:
    """A rough speed to price moves between engines by; only the proportion of prefill to a decode step matters."""
    assert recipe.cluster is not None
    if recipe.cluster.num_gpus == 0:
        return EngineSpeed(prefill_token_s=1e-4, step_s=1e-2, cached_token_s=1e-8)
    return EngineSpeed(prefill_token_s=1e-4, step_s=2e-2, cached_token_s=4e-8)
