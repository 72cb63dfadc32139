"""Checkpoints: each is a folder that is complete or absent.

Invariant: a folder named `000012-step-000010` was complete and synced before it got that name. A kill, a full disk
or a loss of power while it is written leaves at most a folder whose name starts with a dot, which is never loaded and
goes with the next save; every earlier checkpoint stays as it was.
"""

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError

from rstar2.errors import InfrastructureError, UserError
from rstar2.records.rewind import Mark
from rstar2.train.checkpoints.durable import CannotWrite, sync, sync_tree
from rstar2.train.state import TrainState

FORMAT_VERSION = 3
_FAILED_WRITES = (OSError, SafetensorError, CannotWrite)
"""The errors that mean a full disk: of Python, of safetensors and of ranks that write shards."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is stored beside the tensors."""

    path: Path
    state: TrainState
    recipe_digest: str
    mark: Mark
    """How long the run directory's files were."""


class CheckpointFolder:
    def __init__(self, folder: Path, num_kept: int) -> None:
        self._folder = folder
        self._num_kept = num_kept

    @asynccontextmanager
    async def saving(self, state: TrainState) -> AsyncIterator[Path]:
        """Makes a folder for the tensors, which `finish` turns into the next checkpoint; without that call, it is
        removed.

        If something cannot be written, the error is one sentence that names the last complete checkpoint.
        """
        unfinished = self._folder / f".{self._next_number():06d}-step-{state.step:06d}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            unfinished.mkdir()
            yield unfinished
        except _FAILED_WRITES as error:
            latest = self.latest()
            raise InfrastructureError(
                f"cannot save a checkpoint in {self._folder}: {error}. "
                + (f"The one before it, {latest.path.name}, is complete: " if latest else "There is none before it: ")
                + "free some space and resume the run"
            ) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def finish(
        self, unfinished: Path, state: TrainState, *, recipe_digest: str, mark: Mark, keep: bool = False
    ) -> Path:
        """Completes the checkpoint once its tensors are written, and drops old ones. A checkpoint with `keep`, at the
        end of a stage, is never dropped."""
        about = {
            "format_version": FORMAT_VERSION,
            "recipe_digest": recipe_digest,
            "keep": keep,
            "mark": mark,
            "state": state.as_json(),
        }
        (unfinished / "state.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
        sync_tree(unfinished)
        target = unfinished.with_name(unfinished.name.removeprefix("."))
        unfinished.rename(target)
        sync(self._folder)
        self._drop_old()
        return target

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        found = self._finished()
        return _read(found[-1]) if found else None

    def named(self, name: str | None) -> Checkpoint:
        """The checkpoint of this name, or the newest. UserError if there is none; it names those that exist."""
        found = {path.name: path for path in self._finished()}
        if not found:
            raise UserError(f"{self._folder} holds no checkpoint yet")
        if name is not None and name not in found:
            raise UserError(f"there is no checkpoint {name!r} in {self._folder}; it has {', '.join(found)}")
        return _read(found[name or max(found)])

    def _finished(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("[0-9]*-step-*") if (path / "state.json").is_file())

    def _next_number(self) -> int:
        """The number of the next checkpoint. Numbers grow in the order of saving, so the newest name sorts last, and
        none is ever used again."""
        found = self._finished()
        return int(found[-1].name.partition("-")[0]) + 1 if found else 1

    def _drop_old(self) -> None:
        droppable = [path for path in self._finished() if not json.loads((path / "state.json").read_text())["keep"]]
        for path in droppable[: -self._num_kept]:
            # Rename it first: a kill half-way leaves no folder that looks complete.
            shutil.rmtree(path.rename(path.with_name(f".{path.name}")), ignore_errors=True)

    def _sweep(self) -> None:
        for path in self._folder.glob(".[0-9]*-step-*"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turns the errors of a full or unwritable disk into one sentence."""
    try:
        yield
    except _FAILED_WRITES as error:
        raise InfrastructureError(f"cannot write {path}: {error}. Free some space and try again") from error


def _read(path: Path) -> Checkpoint:
    try:
        about = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = about["format_version"]
        if version == FORMAT_VERSION:
            return Checkpoint(path, TrainState.from_json(about["state"]), about["recipe_digest"], about["mark"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}): remove it and resume again") from error
    raise UserError(f"{path} was written by another version of rstar2 (format {version}): resume with that one")
