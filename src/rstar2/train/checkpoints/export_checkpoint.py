"""Exports a checkpoint as a model, whether its run is still going, was stopped, or is over."""

from pathlib import Path

from rstar2.agent import chat_of
from rstar2.config import load_recipe
from rstar2.errors import UserError
from rstar2.models import resolve
from rstar2.records import RunView
from rstar2.records.run_layout import RunLayout
from rstar2.train.checkpoints.checkpoint import CheckpointFolder
from rstar2.train.checkpoints.export import agent_folder
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.policy.policy import load_policy
from rstar2.train.run import VERB, tiny_folder


def export_checkpoint(run: Path, name: str | None = None, target: Path | None = None) -> Path:
    """Exports to `target`, which must be new or empty, or to a folder inside the run named like the checkpoint, and
    returns that folder. It computes on the CPU, because the run may be using the GPU."""
    view, layout = RunView(run), RunLayout(run)
    if view.info.verb != VERB:
        raise UserError(f"{run} holds a run of `rstar2 {view.info.verb}`: it has no checkpoints")
    recipe = load_recipe(layout.recipe)
    checkpoint = CheckpointFolder(layout.checkpoints, recipe.train.num_checkpoints_kept).named(name)
    target = target or run / "exported" / checkpoint.path.name
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} is there already: give another folder, or remove it")
    source = resolve(recipe.model.name) if recipe.model.tiny is None else tiny_folder(layout)
    chat = chat_of(recipe, source)
    on_cpu = recipe.model_copy(update={"model": recipe.model.model_copy(update={"device": "cpu"})})
    rank = LearnerRank(load_policy(source, on_cpu), weight_decay=0.0)
    rank.load(checkpoint.path, weights_only=True)
    with agent_folder(target, source, chat, recipe.environment) as unfinished:
        rank.export(unfinished)
    return target
