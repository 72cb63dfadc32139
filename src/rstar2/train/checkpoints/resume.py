"""Finds the newest checkpoint that a run resumes from, and takes its records back to that moment."""

import hashlib
from pathlib import Path

from rstar2.config import Recipe
from rstar2.config.emit import to_toml
from rstar2.data import Curriculum
from rstar2.errors import UserError
from rstar2.records.rewind import rewind
from rstar2.records.run_layout import RunLayout
from rstar2.train.checkpoints.checkpoint import Checkpoint, CheckpointFolder


def run_digest(recipe: Recipe, curriculum: Curriculum) -> str:
    """A digest of what a checkpoint belongs to: the recipe, and the problems that it named when the run was started."""
    digest = hashlib.sha256(to_toml(recipe).encode())
    for problems in (*curriculum.stages, *curriculum.benchmarks.values()):
        for problem in problems:
            digest.update(f"{problem.id}\0{problem.problem}\0{problem.answer}\0".encode())
    return digest.hexdigest()


def find_checkpoint(run: Path, recipe: Recipe, curriculum: Curriculum) -> Checkpoint | None:
    """The newest checkpoint of a run. UserError if it was made by another recipe, or from other data."""
    found = CheckpointFolder(RunLayout(run).checkpoints, recipe.train.num_checkpoints_kept).latest()
    if found is not None and found.recipe_digest != run_digest(recipe, curriculum):
        raise UserError(
            f"{found.path} was made by another recipe than {run / 'recipe.toml'}, or its data have changed: resume "
            "with what the run was started with, or start a new run"
        )
    return found


def rewind_to(run: Path, checkpoint: Checkpoint | None) -> int:
    """Takes the run's records back to the checkpoint, or to the start. Returns the number of files that were
    changed."""
    layout = RunLayout(run)
    if checkpoint is None:
        return rewind(layout, -1, {"metrics.jsonl": 0})
    return rewind(layout, checkpoint.state.step, checkpoint.mark)
