"""Who runs where, from the recipe alone."""

from typing import Any

import pytest

from rstar2.cluster.placement import place, require_room, transfer_backend
from rstar2.config import load_recipe
from rstar2.config.cluster import ClusterSection
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


def cluster(**fields: Any) -> ClusterSection:
    return ClusterSection.model_validate({"num_nodes": 2, "gpus_per_node": 4, **fields})


def test_in_turns_on_the_same_gpus() -> None:
    placed = place(cluster())
    assert len(placed.bundles) == 8 and all(bundle["GPU"] == 1 for bundle in placed.bundles)
    assert placed.rank_bundles == placed.engine_bundles == tuple(range(8))
    assert placed.gpus_per_rank + placed.gpus_per_engine == 1


def test_each_on_gpus_of_its_own() -> None:
    placed = place(cluster(layout="separated", num_trainer_ranks=6, num_engines=2))
    assert len(placed.bundles) == 8
    assert not set(placed.rank_bundles) & set(placed.engine_bundles)
    assert (placed.gpus_per_rank, placed.gpus_per_engine) == (1, 1)


def test_without_gpus_each_has_a_core() -> None:
    placed = place(cluster(gpus_per_node=0, num_trainer_ranks=2, num_engines=3))
    assert placed.bundles == ({"CPU": 1.0},) * 5 and placed.gpus_per_rank == 0
    assert sorted(placed.rank_bundles + placed.engine_bundles) == list(range(5))


def test_what_the_cluster_lacks_is_said_before_anything_waits_for_it() -> None:
    recipe = load_recipe("recipes/qwen3-14b-64gpu.toml")
    require_room(recipe, {"CPU": 512.0, "GPU": 64.0}, num_nodes=8)
    with pytest.raises(UserError, match="needs 64 GPUs, but the Ray cluster has 8"):
        require_room(recipe, {"CPU": 512.0, "GPU": 8.0}, num_nodes=8)
    with pytest.raises(UserError, match="has 1 nodes"):
        require_room(recipe, {"CPU": 512.0, "GPU": 64.0}, num_nodes=1)


def test_how_weights_travel_to_vllm() -> None:
    assert transfer_backend(cluster()) == "ipc"
    assert transfer_backend(cluster(num_engines=3)) == "ipc"
    assert transfer_backend(cluster(layout="separated", num_trainer_ranks=6, num_engines=2)) == "nccl"
    for layout in ("colocated", "separated"):
        assert transfer_backend(cluster(gpus_per_node=0, layout=layout, num_trainer_ranks=1, num_engines=2)) == "gloo"
    with pytest.raises(UserError, match="as many ranks as engines"):
        transfer_backend(cluster(num_trainer_ranks=4))
