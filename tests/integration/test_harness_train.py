"""Training behind a foreign program: in one process, with segments that reach the learner."""

from pathlib import Path

import pytest
from harness_program import assert_trained, with_program
from train_recipes import write_recipe

from rstar2.config import parse_recipe
from rstar2.train import Observers, prepare_new, train

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]


async def test_a_run_trains_behind_a_program(tmp_path: Path) -> None:
    change = ("[rollout]\n", "[rollout]\nnum_workers = 0\n")
    recipe = parse_recipe(with_program(write_recipe(tmp_path, change).read_text(), tmp_path))
    await train(prepare_new(recipe, tmp_path / "run"), Observers())
    assert_trained(tmp_path / "run")
