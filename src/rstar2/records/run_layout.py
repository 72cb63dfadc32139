"""Where each thing lies in a run directory. Every path of the layout is made here and nowhere else."""

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from rstar2.errors import UserError

_SEGMENT_NAME = re.compile(r"step-(\d{6,})\.jsonl")


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths of one run directory; none of them need exist."""

    path: Path

    @property
    def info(self) -> Path:
        return self.path / "run.json"

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        """Its writer's lock is the lock of the whole run."""
        return self.path / "events.jsonl"

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    @property
    def groups(self) -> Path:
        return self.path / "groups"

    @property
    def schedule(self) -> Path:
        return self.path / "schedule"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def superseded(self) -> Path:
        """What was written after the checkpoint that the run was taken up from."""
        return self.path / "superseded"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer of the run's model, so that tokens can be read as text without the model."""
        return self.path / "tokenizer"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def folders(self) -> tuple[Path, ...]:
        return self.traces, self.groups, self.schedule, self.checkpoints, self.figures


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
