"""A run on two machines behind a foreign program: the program runs beside the driver, its model on the engines."""

from pathlib import Path

import pytest
from cluster_runs import Watcher, write_cluster_recipe
from harness_program import assert_trained, with_program

from rstar2.cluster.run import train_on_cluster
from rstar2.config import parse_recipe
from rstar2.train import prepare_new
from rstar2.train.run import check_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.usefixtures("address")]


async def test_a_run_on_a_cluster_trains_behind_a_program(tmp_path: Path) -> None:
    recipe = parse_recipe(with_program(write_cluster_recipe(tmp_path).read_text(), tmp_path))
    await train_on_cluster(prepare_new(recipe, tmp_path / "run", check_cluster), Watcher())
    assert_trained(tmp_path / "run")
