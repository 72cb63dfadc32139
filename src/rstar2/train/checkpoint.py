"""Checkpoints: a folder that is complete or is not there.

Invariant: a folder named `000012-step-000010` was written whole and synced before it got that name. A kill, a full disk
or a loss of power while it is written leaves at most a folder whose name starts with a dot, which is never loaded and
goes with the next save; every earlier checkpoint stays as it was.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rstar2.errors import InfrastructureError, UserError
from rstar2.records.rewind import Mark
from rstar2.train.state import TrainState

FORMAT_VERSION = 1
_FAILED_WRITES = (OSError, SafetensorError, RuntimeError)
"""What a full disk is to Python, to safetensors and to torch."""


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

    def save(
        self,
        state: TrainState,
        *,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Any],
        recipe_digest: str,
        mark: Mark,
        keep: bool = False,
    ) -> Path:
        """Write a checkpoint, then drop old ones. One that is to be kept, at the end of a stage, is never dropped."""
        name = f"{self._next_number():06d}-step-{state.step:06d}"
        unfinished = self._folder / f".{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            unfinished.mkdir()
            save_file({key: tensor.contiguous() for key, tensor in weights.items()}, unfinished / "weights.safetensors")
            torch.save(optimizer, unfinished / "optimizer.pt")
            about = {
                "format_version": FORMAT_VERSION,
                "recipe_digest": recipe_digest,
                "keep": keep,
                "mark": mark,
                "state": state.as_json(),
            }
            (unfinished / "state.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            for file in unfinished.iterdir():
                _sync(file)
            _sync(unfinished)
            target = self._folder / name
            unfinished.rename(target)
            _sync(self._folder)
        except _FAILED_WRITES as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            latest = self.latest()
            raise InfrastructureError(
                f"cannot save a checkpoint in {self._folder}: {error}. "
                + (f"The one before it, {latest.path.name}, is whole: " if latest else "There is none before it: ")
                + "free some space and resume the run"
            ) from error
        self._drop_old()
        return target

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint."""
        found = self._finished()
        return _read(found[-1]) if found else None

    def _finished(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("[0-9]*-step-*") if (path / "state.json").is_file())

    def _next_number(self) -> int:
        """Names grow in the order of saving, so the newest is the last; none is ever used again."""
        found = self._finished()
        return int(found[-1].name.partition("-")[0]) + 1 if found else 1

    def _drop_old(self) -> None:
        droppable = [path for path in self._finished() if not json.loads((path / "state.json").read_text())["keep"]]
        for path in droppable[: -self._num_kept]:
            # Out of sight first: a kill half-way leaves no folder that looks whole.
            shutil.rmtree(path.rename(path.with_name(f".{path.name}")), ignore_errors=True)

    def _sweep(self) -> None:
        for path in self._folder.glob(".[0-9]*-step-*"):
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """A full disk, or one that cannot be written, as one sentence."""
    try:
        yield
    except _FAILED_WRITES as error:
        raise InfrastructureError(f"cannot write {path}: {error}. Free some space and resume the run") from error


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file that is complete or is not there."""
    unfinished = path.with_name(f".{path.name}")
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, unfinished)
        _sync(unfinished)
        unfinished.rename(path)


def load_tensors(checkpoint: Checkpoint, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and optimizer state."""
    try:
        weights = load_file(checkpoint.path / "weights.safetensors", device=str(device))
        optimizer = torch.load(checkpoint.path / "optimizer.pt", map_location=device, weights_only=True)
    except Exception as error:
        raise UserError(
            f"{checkpoint.path} cannot be read ({type(error).__name__}: {error}): remove it, and the run goes on from "
            "the checkpoint before it"
        ) from error
    return weights, optimizer


def _read(path: Path) -> Checkpoint:
    try:
        about = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = about["format_version"]
        if version == FORMAT_VERSION:
            return Checkpoint(path, TrainState.from_json(about["state"]), about["recipe_digest"], about["mark"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}): remove it and resume again") from error
    raise UserError(f"{path} was written by another version of rstar2 (format {version}): resume with that one")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
