"""A run whose tokens come from a real vLLM on a CPU: it has the trainer's weights at every step.

`make test-vllm` runs it in an environment of its own.
"""

import importlib.util
import os
import signal
from pathlib import Path

import pytest
from cluster_runs import NUM_STEPS, Watcher, losses, send, write_cluster_recipe

from rstar2.cluster.run import train_on_cluster
from rstar2.config import load_recipe
from rstar2.errors import InfrastructureError
from rstar2.records import RunStatus, RunView
from rstar2.train import prepare_new
from rstar2.train.run import check_cluster

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vllm is not installed here: `make test-vllm` runs this test", allow_module_level=True)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.usefixtures("address")]

SEPARATED = """
[cluster]
num_nodes = 1
gpus_per_node = 0
layout = "separated"
num_trainer_ranks = 1
num_engines = 1
"""
COLOCATED = """
[cluster]
num_nodes = 2
gpus_per_node = 0
layout = "colocated"
num_trainer_ranks = 2
num_engines = 2
"""
MID_STEP = 2
MAX_MISMATCH = 1e-3
"""Between the engine's and the trainer's log-probabilities of the same tokens, in float32."""


async def train_with_vllm(folder: Path, cluster: str, watcher: Watcher, hidden_size: int = 128) -> Path:
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"], "the Makefile sets what vLLM needs on a small machine"
    changes = (("hidden_size = 32", f"hidden_size = {hidden_size}"), ("[engine]\n", '[engine]\nkind = "vllm"\n'))
    recipe = load_recipe(write_cluster_recipe(folder, *changes, cluster=cluster))
    run = folder / "run"
    await train_on_cluster(prepare_new(recipe, run, check_cluster), watcher)
    return run


def assert_engines_followed(run: Path) -> None:
    """Every token came from the trainer's weights as they were then, and says so."""
    view = RunView(run)
    assert view.status is RunStatus.FINISHED
    trained = losses(run)
    assert len(trained) >= 3
    rows = [row for row in view.metrics() if row.stage in ("first", "second") and "mismatch" in row.values]
    assert all((row.values["mismatch"] or 0.0) < MAX_MISMATCH for row in rows), rows
    for step in range(1, NUM_STEPS + 1):
        versions = {
            turn.policy_version
            for trace in view.traces(step)
            if trace.id.startswith(f"s{step:06d}-")
            for turn in trace.turns
        }
        assert versions == {max((learnt for learnt in trained if learnt < step), default=0)}


async def test_weights_reach_vllm_at_every_step(tmp_path: Path) -> None:
    watcher = Watcher()
    assert_engines_followed(await train_with_vllm(tmp_path, SEPARATED, watcher))
    assert not [said for said in watcher.said if "given up" in said or "disconnected" in said], watcher.said


async def test_engines_sleep_while_ranks_learn_and_one_that_is_killed_is_sent_the_weights(tmp_path: Path) -> None:
    watcher = Watcher(send("EngineActor", signal.SIGKILL), at_step=MID_STEP)
    assert_engines_followed(await train_with_vllm(tmp_path, COLOCATED, watcher))
    assert watcher.has_acted and any(
        "has disconnected: its rollouts continue elsewhere" in said for said in watcher.said
    )
    assert any(" joined after " in said for said in watcher.said), watcher.said


async def test_a_model_that_vllm_cannot_run_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """vLLM starts, and fails at its first token: its kernels for CPUs have no heads of 16. Its log says so, and not
    always its error."""
    watcher = Watcher()
    with pytest.raises(InfrastructureError):
        await train_with_vllm(tmp_path, SEPARATED, watcher, hidden_size=64)
    assert any("has failed (vLLM ended" in said or "head_dim=16" in said for said in watcher.said), watcher.said
    assert any("5 engines in a row made no token" in said for said in watcher.said)
