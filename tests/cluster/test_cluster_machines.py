"""Machines that leave in the middle of a step, and machines that join."""

import asyncio
from pathlib import Path

import pytest
import ray
from cluster_runs import CLUSTER, NUM_STEPS, Watcher, losses, write_cluster_recipe
from ray.cluster_utils import Cluster

from rstar2.cluster.run import train_on_cluster
from rstar2.config import load_recipe
from rstar2.records import RunStatus, RunView
from rstar2.train import prepare_new
from rstar2.train.run import check_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


async def test_a_machine_leaves_and_another_joins(tmp_path: Path) -> None:
    ray.shutdown()
    machine = {"num_cpus": 4, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    leaving = cluster.add_node(**machine)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:

        def replace_machine() -> None:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, cluster.remove_node, leaving, False)
            loop.run_in_executor(None, lambda: cluster.add_node(**machine))

        watcher = Watcher(replace_machine, at_step=2)
        recipe = load_recipe(write_cluster_recipe(tmp_path, cluster=CLUSTER))
        run = tmp_path / "run"
        await train_on_cluster(prepare_new(recipe, run, check_cluster), watcher)
        assert RunView(run).status is RunStatus.FINISHED and len(losses(run)) == NUM_STEPS
        assert watcher.has_acted and any("left, and its sandbox with it" in said for said in watcher.said), watcher.said
    finally:
        ray.shutdown()
        cluster.shutdown()
