"""A run whose tokens come from a real vLLM on a CPU: it has the trainer's weights at every step.

`make test-vllm` runs it in an environment of its own.
"""

import importlib.util
import os
from pathlib import Path

import pytest
from cluster_runs import NUM_STEPS, Watcher, losses, write_cluster_recipe

from rstar2.cluster.run import train_on_cluster
from rstar2.config import load_recipe
from rstar2.records import RunStatus, RunView
from rstar2.train import prepare_new
from rstar2.train.sizes import check_cluster

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make test-vllm` runs this test", allow_module_level=True)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("address")]

CLUSTER = """
[cluster]
num_nodes = 1
gpus_per_node = 0
layout = "separated"
num_trainer_ranks = 1
num_engines = 1
"""
CHANGES = (("hidden_size = 32", "hidden_size = 128"), ("[engine]\n", '[engine]\nkind = "vllm"\nblock_tokens = 32\n'))
MAX_MISMATCH = 1e-3
"""Between the engine's and the trainer's log-probabilities of the same tokens, in float32."""


async def test_weights_reach_vllm_at_every_step(tmp_path: Path) -> None:
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"], "the Makefile sets what vLLM needs on a small machine"
    recipe = load_recipe(write_cluster_recipe(tmp_path, *CHANGES, cluster=CLUSTER))
    run = tmp_path / "run"
    await train_on_cluster(prepare_new(recipe, run, check_cluster), Watcher())
    view = RunView(run)
    assert view.status is RunStatus.FINISHED
    trained = losses(run)
    assert len(trained) >= 3
    rows = [row for row in view.metrics() if row.stage in ("first", "second") and "mismatch" in row.values]
    assert all((row.values["mismatch"] or 0.0) < MAX_MISMATCH for row in rows), "vLLM has the trainer's weights"
    for step in range(1, NUM_STEPS + 1):
        versions = {
            turn.policy_version
            for trace in view.traces(step)
            if trace.id.startswith(f"s{step:06d}-")
            for turn in trace.turns
        }
        assert versions == {max((learnt for learnt in trained if learnt < step), default=0)}, "and says so"
