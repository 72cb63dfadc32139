"""A source's files: from a folder of the user, or from the hub at a commit that is recorded."""

from dataclasses import dataclass
from pathlib import Path

from rstar2.data.build.source import BuildSource
from rstar2.data.folder import find_in_folder
from rstar2.data.hub import choose_files, fetch_files, locked_commit
from rstar2.data.rows import is_data_file
from rstar2.errors import UserError
from rstar2.models.progress import FetchProgress


@dataclass(frozen=True, slots=True)
class SourceFiles:
    paths: tuple[Path, ...]
    commit: str | None
    """The hub's commit; None for a user's own files, which only their SHA-256 identifies."""


def hub_files(source: BuildSource, progress: FetchProgress) -> SourceFiles:
    """The source's files from the hub, downloaded if they are not here."""
    paths = fetch_files(source.hub, progress)
    return SourceFiles(paths, locked_commit(source.hub))


def folder_files(source: BuildSource, folder: Path) -> SourceFiles:
    """The source's files in a user's folder: `FOLDER/toolace.json`, or a folder `FOLDER/toolace` or `FOLDER/ToolACE`
    with the repository's files."""
    repo = source.hub.repo
    names = (source.name, repo.rpartition("/")[2], repo.replace("/", "--"))
    for name in names:
        if (folder / name).is_dir() and (paths := _in_copy(source, folder / name)):
            return SourceFiles(paths, None)
    found = find_in_folder(folder, names)
    if found is None:
        raise UserError(
            f"{folder} has no files of {source.name}: put those of {repo} into {folder / source.name}, or leave the "
            "source out with --sources"
        )
    return SourceFiles((found,), None)


def _in_copy(source: BuildSource, copy: Path) -> tuple[Path, ...]:
    """The files of a copy that the hub would give, or all of them if the copy has another layout."""
    held = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file() and is_data_file(path.name))
    return tuple(copy / path for path in choose_files(held, source.hub.files) or held)
