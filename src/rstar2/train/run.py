"""Starting a training run, and resuming one."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2.agent import chat_of
from rstar2.config import Recipe, load_recipe
from rstar2.config.emit import to_toml
from rstar2.config.model import TINY_PREFIX
from rstar2.data import Conversation, Curriculum, load_curriculum
from rstar2.engine.embedded.options import choose_device
from rstar2.errors import UserError
from rstar2.models import resolve
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.records import RunDirectory, RunStatus, RunView, Trace
from rstar2.records.rewind import superseded_traces
from rstar2.records.run_layout import RunLayout
from rstar2.train.checkpoints.checkpoint import Checkpoint, write_errors
from rstar2.train.checkpoints.resume import find_checkpoint, rewind_to
from rstar2.train.curriculum.tags import require_learnable_tags
from rstar2.train.learning.sft_examples import conversation_texts
from rstar2.train.reporting.observer import Observer
from rstar2.train.seeds import named_seed
from rstar2.train.trainer import Trainer
from rstar2.train.workbench import OpenWorkbench, open_solo_workbench

VERB = "train"


def check_solo(recipe: Recipe) -> None:
    """UserError if one process on this machine cannot train it."""
    if recipe.cluster is not None:
        raise UserError("the recipe has a [cluster]: train it with --cluster, or leave that section out")
    choose_device(recipe.model.device)


def check_cluster(recipe: Recipe) -> None:
    """UserError if a cluster cannot train it."""
    if recipe.cluster is None:
        raise UserError("the recipe has no [cluster]: add that section, or leave --cluster out")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run whose recipe and data were read and checked; nothing was loaded or written yet."""

    recipe: Recipe
    curriculum: Curriculum
    folder: Path
    checkpoint: Checkpoint | None = None
    is_resumed: bool = False


def prepare_new(recipe: Recipe, folder: Path, check: Callable[[Recipe], None] = check_solo) -> Prepared:
    """Reads and checks a new run. `check` raises UserError for a recipe that the intended workbench cannot train."""
    check(recipe)
    return Prepared(recipe, load_curriculum(recipe), folder)


def prepare_resumed(folder: Path, check: Callable[[Recipe], None] = check_solo) -> Prepared:
    """Reads and checks a run to resume, by the recipe.toml that it was started with."""
    view = RunView(folder)
    if view.info.verb != VERB:
        raise UserError(f"{folder} holds a run of `rstar2 {view.info.verb}`; `rstar2 train` cannot resume it")
    if view.status is RunStatus.FINISHED:
        raise UserError(f"{folder} is finished: there is nothing to resume")
    if view.status is RunStatus.RUNNING:
        raise UserError(f"{folder} is being written by another process: stop that first")
    recipe = load_recipe(RunLayout(folder).recipe)
    check(recipe)
    curriculum = load_curriculum(recipe)
    checkpoint = find_checkpoint(folder, recipe, curriculum)
    return Prepared(recipe, curriculum, folder, checkpoint, is_resumed=True)


async def train(
    prepared: Prepared,
    observer: Observer,
    argv: Sequence[str] | None = None,
    open_workbench: OpenWorkbench = open_solo_workbench,
) -> None:
    """Train to the end of the recipe. A run that ends early records why in its run directory, and can be resumed."""
    with _open_run(prepared, observer, argv) as run:
        recipe = prepared.recipe
        observer.waits_for("the model, the engine and the sandbox to start")
        folder = _model_folder(recipe, prepared.curriculum.conversations, run)
        _copy_tokenizer(folder, run)
        chat = chat_of(recipe, folder)
        require_learnable_tags(recipe, folder, chat)
        async with open_workbench(recipe, folder, chat) as bench:
            for note in bench.notes:
                observer.say(note)
            trainer = Trainer(recipe, prepared.curriculum, chat, bench, run, observer)
            finished = _finished_rollouts(prepared) if prepared.is_resumed else {}
            await trainer.train(prepared.checkpoint, finished)
            await trainer.export(folder)


def _open_run(prepared: Prepared, observer: Observer, argv: Sequence[str] | None) -> RunDirectory:
    if not prepared.is_resumed:
        return RunDirectory.create(
            prepared.folder, verb=VERB, recipe_toml=to_toml(prepared.recipe), seed=prepared.recipe.seed, argv=argv
        )

    def go_back() -> None:
        if num_files := rewind_to(prepared.folder, prepared.checkpoint):
            kept = RunLayout(prepared.folder).superseded
            observer.say(f"what {num_files} files held beyond the checkpoint was moved to {kept}")

    return RunDirectory.resume(prepared.folder, verb=VERB, before_writing=go_back)


def _finished_rollouts(prepared: Prepared) -> dict[str, Trace]:
    """The rollouts that had finished after the last checkpoint when the run was stopped."""
    step = prepared.checkpoint.state.step if prepared.checkpoint else 0
    return superseded_traces(RunLayout(prepared.folder), step)


def _model_folder(recipe: Recipe, conversations: Sequence[Conversation], run: RunDirectory) -> Path:
    """The folder of the model to train. A tiny model is rebuilt from the seed, so a run killed during the build can
    resume."""
    if recipe.model.tiny is None:
        return resolve(recipe.model.name)
    if not conversations:
        raise UserError(f"{recipe.model.name} is built from nothing and builds its vocabulary from [sft]: give it data")
    folder, tiny = tiny_folder(run.layout), recipe.model.tiny
    sizes = TinySizes(
        num_layers=tiny.num_layers,
        hidden_size=tiny.hidden_size,
        num_heads=tiny.num_heads,
        num_kv_heads=tiny.num_kv_heads,
        vocab_size=tiny.vocab_size,
        context_tokens=recipe.model.context_tokens,
    )
    architecture = recipe.model.name.removeprefix(TINY_PREFIX)
    with write_errors(folder):
        build_tiny(folder, architecture, sizes, conversation_texts(conversations), named_seed(recipe.seed, "model"))
    return folder


def tiny_folder(layout: RunLayout) -> Path:
    """The folder of the tiny model that a run started from."""
    return layout.path / "model"


def _copy_tokenizer(folder: Path, run: RunDirectory) -> None:
    """Copies the tokenizer beside the traces, so that their tokens can be read without the model."""
    target = run.layout.tokenizer
    with write_errors(target):
        target.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                shutil.copy(folder / name, target / name)
