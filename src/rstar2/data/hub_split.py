"""Finds the files of a hub repository that are the requested split.

By the hub's convention a split's name is a word of the path (`data/train-00000-of-00001.parquet`, `test.jsonl`), and
files that name no split are the train split. If several folders have the split, the usual one (`data`, `default`,
`main`, or none) is taken, or else an error is raised: a recipe does not say which is meant.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rstar2.data.catalog_set import HubSource
from rstar2.data.hub import fetch_files, repo_paths
from rstar2.data.rows import is_data_file
from rstar2.errors import UserError

SPLIT_WORDS = frozenset({"train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"})
USUAL_FOLDERS = ("data", "default", "main", ".")

_WORD = re.compile(r"[^A-Za-z0-9]+")


def split_files(repo: str, revision: str | None, split: str) -> tuple[Path, ...]:
    """The split's files, downloaded if they are not here."""
    chosen = choose_split(repo_paths(repo, revision), split)
    return fetch_files(HubSource(repo, revision, tuple(chosen)))


def choose_split(paths: Sequence[str], split: str) -> list[str]:
    """The data files of the split, in order. If there are none, a UserError lists the files that there are."""
    candidates = sorted(path for path in paths if is_data_file(path))
    words_in = {path: {word.lower() for word in _WORD.split(path)} for path in candidates}
    chosen = [path for path in candidates if split.lower() in words_in[path]]
    if not chosen and split == "train":
        chosen = [path for path in candidates if not words_in[path] & SPLIT_WORDS]
    if not chosen:
        raise UserError(f"no data file of the split {split!r}; the files are {', '.join(candidates) or 'none'}")
    folders = {str(PurePosixPath(path).parent) for path in chosen}
    if len(folders) > 1:
        usual = [folder for folder in USUAL_FOLDERS if folder in folders]
        if not usual:
            raise UserError(
                f"the split {split!r} is in several folders ({', '.join(sorted(folders))}): download the file that you "
                "mean and name it as file:PATH"
            )
        chosen = [path for path in chosen if str(PurePosixPath(path).parent) == usual[0]]
    return chosen
