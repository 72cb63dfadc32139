"""Tensors by name in a folder: any number of ranks writes them, and any other number may read them.

The format is that of `torch.distributed.checkpoint`, on one rank as on many, so a run that was begun on a laptop can go
on on a cluster. Each rank writes and reads only what it holds; every file is synced before the call returns.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rstar2.errors import UserError
from rstar2.train.checkpoints.durable import CannotWrite
from rstar2.train.sharding.ranks import Ranks


def write_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Writes the tensors. Every rank must call it; if one of them fails, CannotWrite is raised on all."""
    try:
        with quiet():
            save(dict(tensors), storage_writer=FileSystemWriter(folder), no_dist=ranks.size == 1)
    except CheckpointException as error:
        raise CannotWrite(_reason(error)) from error


def read_shards(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Overwrites the tensors; they may be sharded in another way than those that were written."""
    try:
        with quiet():
            load(dict(tensors), storage_reader=FileSystemReader(folder), no_dist=ranks.size == 1)
    except CheckpointException as error:
        raise _unreadable(folder, error) from error


def stored_shapes(folder: Path) -> dict[str, torch.Size]:
    """The shapes of all tensors in the folder, by name."""
    try:
        stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    except Exception as error:
        raise _unreadable(folder, error) from error
    return {name: entry.size for name, entry in stored.items() if isinstance(entry, TensorStorageMetadata)}


def _unreadable(folder: Path, error: BaseException) -> UserError:
    return UserError(
        f"{folder} cannot be read ({_reason(error)}): remove it, and the run resumes from the checkpoint before it"
    )


def _reason(error: BaseException) -> str:
    """The first sentence of the first rank that failed: torch's own text holds every rank's traceback. Torch hides a
    full disk behind a remark on a file position, so the OSError behind an error is preferred."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return str(cause) if cause is not None else f"{type(error).__name__}: {error}".partition(". ")[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences torch's warning that a single process saves alone, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
