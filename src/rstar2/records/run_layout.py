"""The layout of a run directory. Every path of it is made here and nowhere else."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from rstar2.errors import UserError

_SEGMENT_NAME = re.compile(r"step-(\d{6,})\.jsonl")


class RunLayout:
    """The paths of one run directory. None of them need exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.info = path / "run.json"
        self.recipe = path / "recipe.toml"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        """The events. The lock of this file's writer is the lock of the run."""
        self.traces = path / "traces"
        self.groups = path / "groups"
        self.schedule = path / "schedule"
        self.checkpoints = path / "checkpoints"
        self.superseded = path / "superseded"
        """Records that were written after the checkpoint from which the run was resumed."""
        self.tokenizer = path / "tokenizer"
        """The tokenizer of the run's model, so that tokens can be shown as text without the model."""
        self.figures = path / "figures"
        self.folders = (self.traces, self.groups, self.schedule, self.checkpoints, self.figures)
        """The folders that every run has."""


def segment(folder: Path, step: int) -> Path:
    """The file in `traces`, `groups` or `schedule` that holds one step, so that a reader can open that step alone."""
    return folder / f"step-{step:06d}.jsonl"


def segment_steps(folder: Path) -> list[int]:
    """The steps that have a file, in order."""
    names = (_SEGMENT_NAME.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def make_run_folder(name: str, parent: Path = Path("runs"), now: datetime | None = None) -> Path:
    """A new, empty folder `parent/<name>-<timestamp>`; two runs that start within one second get two folders."""
    stem = f"{name}-{(now or datetime.now(UTC)):%Y%m%d-%H%M%S}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            folder = parent / (stem if number == 1 else f"{stem}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                break
    except OSError as error:
        raise UserError(f"cannot make a run folder in {parent}: {error.strerror}; choose another place") from error
    return folder
