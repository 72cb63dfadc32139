"""Downloads data files of a hub repository into the data home: complete, at one commit, and never changed afterwards.

Invariant: a repository's folder holds a lock file (`rstar2-lock.json`) that says the commit and the SHA-256 of every
file it lists; it is written after the files are complete and checked. Files that differ from the lock are refused,
whether they were changed here or by the hub. An interrupted transfer resumes where it stopped.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from rstar2.data.catalog_set import HubSource
from rstar2.data.rows import is_data_file
from rstar2.errors import InfrastructureError, UserError
from rstar2.models.gguf_wheel import sha256_of
from rstar2.models.home import kept_in_home
from rstar2.models.hub import HUB_ANSWER_DEADLINE_S, HubUnavailableError, answer_within, hidden_bar, reason
from rstar2.models.progress import Advance, FetchProgress, SilentProgress, following_size
from rstar2.models.storage import exclusive, is_storage_error, require_free, require_installed, storage_errors
from rstar2.records.atomic import replace_file

LOCK_NAME = "rstar2-lock.json"
LOCK_SCHEMA_VERSION = 1
PARTIAL_NAME = ".partial"
MOVING_REVISION = "main"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file as the hub lists it; the hub knows the SHA-256 of large files only."""

    path: str
    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    commit: str
    files: tuple[HubFile, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock file's content. `requested` is the revision that was asked for, `commit` the commit that it was at the
    time."""

    repo: str
    requested: str
    commit: str
    listed: list[str] = field(default_factory=list)
    """Every file of the repository at the commit, downloaded or not, so that splits are found without the hub."""
    sha256: dict[str, str] = field(default_factory=dict)
    schema_version: int = LOCK_SCHEMA_VERSION


def repo_folder(source: HubSource) -> Path:
    return kept_in_home("data") / f"{source.repo.replace('/', '--')}@{source.revision or MOVING_REVISION}"


def cached_files(source: HubSource) -> tuple[Path, ...] | None:
    """The source's files if they were downloaded, else None. UserError if a file was changed."""
    folder = repo_folder(source)
    lock = _read_lock(folder)
    if lock is None:
        return None
    paths = choose_files(lock.listed, source.files)
    if paths is None or not all(path in lock.sha256 and (folder / path).is_file() for path in paths):
        return None
    for path in paths:
        _refuse_changed(folder, path, lock.sha256[path])
    return tuple(folder / path for path in paths)


def locked_commit(source: HubSource) -> str | None:
    """The commit of the source's downloaded files; None before the first download."""
    lock = _read_lock(repo_folder(source))
    return None if lock is None else lock.commit


def fetch_files(source: HubSource, progress: FetchProgress | None = None) -> tuple[Path, ...]:
    """The source's files, downloaded if they are not here."""
    cached = cached_files(source)
    if cached is not None:
        return cached
    require_installed(("huggingface_hub",), f"getting {source.repo}")
    folder = repo_folder(source)
    with storage_errors(folder.parent):
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder):
            return _download(source, folder, progress or SilentProgress())


def repo_paths(repo: str, revision: str | None) -> tuple[str, ...]:
    """The paths of all files of the repository at the first download, or in the hub's listing if there was none."""
    lock = _read_lock(repo_folder(HubSource(repo, revision, ())))
    if lock is not None:
        return tuple(lock.listed)
    require_installed(("huggingface_hub",), f"getting {repo}")
    try:
        return list_files(repo, revision or MOVING_REVISION).paths
    except HubUnavailableError as error:
        raise _unserved(HubSource(repo, revision, ()), error) from error


def list_files(repo: str, revision: str) -> Listing:
    """The files that the repository holds at the revision."""

    def ask() -> Listing:
        from huggingface_hub import HfApi

        info = HfApi().dataset_info(repo, revision=revision, files_metadata=True, timeout=HUB_ANSWER_DEADLINE_S)
        files = tuple(
            HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
            for file in info.siblings or ()
        )
        return Listing(info.sha or revision, files)

    return answer_within(HUB_ANSWER_DEADLINE_S, ask)


def choose_files(paths: Sequence[str], wanted: Sequence[str]) -> list[str] | None:
    """All files that are named exactly, and those of the first pattern that matches any; None if a named file is
    missing, or no pattern matches."""
    data_files = [path for path in paths if is_data_file(path)]
    names = [each for each in wanted if "*" not in each]
    patterns = [each for each in wanted if "*" in each]
    if any(name not in data_files for name in names):
        return None
    matches = ([path for path in data_files if _matches(path, pattern)] for pattern in patterns)
    found = next((match for match in matches if match), None)
    if patterns and found is None:
        return None
    return names + (found or [])


def _matches(path: str, pattern: str) -> bool:
    """Matches like a shell: a star does not match a slash."""
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def _download(source: HubSource, folder: Path, progress: FetchProgress) -> tuple[Path, ...]:
    """Downloads under the folder's lock. The commit of an earlier download is kept, whatever the branch points to by
    now."""
    lock = _read_lock(folder) or Lock(source.repo, source.revision or MOVING_REVISION, commit="")
    try:
        listing = list_files(source.repo, lock.commit or lock.requested)
        wanted = _wanted(source, listing)
        require_free(folder, sum(file.num_bytes for file in wanted))
        with progress.stage(f"downloading {source.repo}", sum(file.num_bytes for file in wanted)) as advance:
            hashes = _transfer_all(source, listing.commit, wanted, folder, advance)
    except HubUnavailableError as error:
        raise _unserved(source, error) from error
    for file in wanted:
        _refuse_other_bytes(source, file, hashes[file.path], lock.sha256.get(file.path))
    _write_lock(folder, replace(lock, commit=listing.commit, listed=[*listing.paths], sha256={**lock.sha256, **hashes}))
    shutil.rmtree(folder / PARTIAL_NAME, ignore_errors=True)
    return tuple(folder / file.path for file in wanted)


def _unserved(source: HubSource, error: HubUnavailableError) -> HubUnavailableError:
    token = ", with HF_TOKEN of an account that accepted its terms" if source.is_gated else ""
    return HubUnavailableError(
        f"the Hugging Face hub did not serve {source.repo} ({error}): try again where it can be reached{token}"
    )


def _wanted(source: HubSource, listing: Listing) -> list[HubFile]:
    by_path = {file.path: file for file in listing.files}
    paths = choose_files(list(by_path), source.files)
    if paths is None:
        held = ", ".join(path for path in by_path if is_data_file(path)) or "no data files"
        raise UserError(f"{source.repo} at {listing.commit[:8]} has no {' or '.join(source.files)}; it holds {held}")
    return [by_path[path] for path in paths]


def _transfer_all(
    source: HubSource, commit: str, files: Sequence[HubFile], folder: Path, advance: Advance
) -> dict[str, str]:
    """Transfers every file to its place. Returns the SHA-256 of each."""
    num_done_bytes = 0
    hashes: dict[str, str] = {}
    for file in files:
        place = folder / file.path
        if not place.is_file():
            _transfer(source.repo, commit, file, place, folder / PARTIAL_NAME, _beyond(num_done_bytes, advance))
        num_done_bytes += file.num_bytes
        advance(num_done_bytes)
        hashes[file.path] = sha256_of(place)
    return hashes


def _beyond(num_done_bytes: int, advance: Advance) -> Advance:
    return lambda num_bytes: advance(num_done_bytes + num_bytes)


def _transfer(repo: str, commit: str, file: HubFile, place: Path, scratch: Path, advance: Advance) -> None:
    """Transfers one file; bytes that an earlier attempt left are not requested again."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    # The name has the commit: a partial file of another version must not be resumed.
    partial = scratch / f"{commit[:12]}-{file.path.replace('/', '--')}"
    scratch.mkdir(exist_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    # A compressed transfer has no offset to resume from.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    try:
        with partial.open("ab") as stream, following_size(scratch, advance):
            if stream.tell() > file.num_bytes:
                stream.truncate(0)
            http_get(
                hf_hub_url(repo, file.path, repo_type="dataset", revision=commit),
                stream,
                resume_size=stream.tell(),
                expected_size=file.num_bytes,
                headers=headers,
                tqdm_class=hidden_bar(),
            )
    except OSError as error:
        if is_storage_error(error):
            raise
        raise HubUnavailableError(reason(error)) from error
    except Exception as error:
        # The types of the client's HTTP library differ between its releases.
        raise HubUnavailableError(reason(error)) from error
    partial.replace(place)


def _refuse_other_bytes(source: HubSource, file: HubFile, found: str, locked: str | None) -> None:
    """Refuses a file whose SHA-256 differs from that of the catalog, the lock or the hub's listing, if they have
    one."""
    expectations = {"the catalog": source.sha256.get(file.path), "the lock": locked, "the hub's listing": file.sha256}
    for who, expected in expectations.items():
        if expected is not None and expected != found:
            place = repo_folder(source) / file.path
            place.unlink()
            raise InfrastructureError(
                f"{file.path} of {source.repo} has SHA-256 {found}, not {expected} as {who} says: it is not the file "
                "that was published, so it was removed; try again, and ask the set's owner if it stays so"
            )


def _refuse_changed(folder: Path, path: str, expected: str) -> None:
    if sha256_of(folder / path) != expected:
        raise UserError(
            f"{folder / path} is not the file that was downloaded (its SHA-256 is not that of {LOCK_NAME}): "
            "remove it and get the set again"
        )


def _read_lock(folder: Path) -> Lock | None:
    try:
        document = json.loads((folder / LOCK_NAME).read_text(encoding="utf-8"))
        lock = Lock(**document)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"cannot read {folder / LOCK_NAME} ({error.strerror}): correct it, or set RSTAR2_HOME to another folder"
        ) from error
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{folder / LOCK_NAME} cannot be read ({error}): remove {folder} and get the set again"
        ) from error
    if lock.schema_version != LOCK_SCHEMA_VERSION:
        raise UserError(f"{folder} was written by another version of rstar2: remove it and get the set again")
    return lock


def _write_lock(folder: Path, lock: Lock) -> None:
    replace_file(folder / LOCK_NAME, (json.dumps(asdict(lock), indent=2, sort_keys=True) + "\n").encode())
