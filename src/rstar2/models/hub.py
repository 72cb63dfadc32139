"""Downloads a model's files from the Hugging Face hub, and has the error and deadline that all uses of the hub share.

Whatever keeps the hub from serving (no network, no such commit, a broken transfer) is a `HubUnavailableError`, so that
the caller can try another source. A machine without the hub finds out within `HUB_ANSWER_DEADLINE_S`.
"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rstar2.errors import InfrastructureError
from rstar2.models.catalog import CatalogEntry
from rstar2.models.progress import FetchProgress, following_size
from rstar2.models.storage import is_storage_error, require_free

HUB_ANSWER_DEADLINE_S = 6.0
"""A hub that can be reached lists a repository in well under a second. The client's own limits are per attempt and per
address and do not cover name resolution, so together they can reach minutes."""

Answer = TypeVar("Answer")


class HubUnavailableError(InfrastructureError):
    """The hub did not serve a request; the message briefly says why."""


def answer_within(deadline_s: float, ask: Callable[[], Answer]) -> Answer:
    """Returns the result of `ask`; HubUnavailableError if the hub is switched off or fails, or the deadline has
    passed."""
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise HubUnavailableError("HF_HUB_OFFLINE is set")
    answers: list[Answer] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            failures.append(error)

    # A daemon: a name lookup cannot be cancelled, and must not keep the process from exiting.
    asking = threading.Thread(target=run, daemon=True, name="asking the hub")
    asking.start()
    asking.join(deadline_s)
    if asking.is_alive():
        raise HubUnavailableError(f"no answer within {deadline_s:g} s")
    if failures:
        raise HubUnavailableError(reason(failures[0])) from failures[0]
    return answers[0]


def hidden_bar() -> Any:
    """A class of progress bar that draws nothing: the client always draws, and our own bar shows the same bytes."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class HiddenBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

    return HiddenBar


def reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_NEEDED_NAMES = frozenset(
    {
        "LICENSE",
        "added_tokens.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    }
)


def fetch_from_hub(entry: CatalogEntry, folder: Path, progress: FetchProgress) -> None:
    """Fills the existing `folder` with the entry's files, each at its full size."""
    sizes = _list_needed_files(entry)
    total_bytes = sum(sizes.values())
    require_free(folder, total_bytes)
    with progress.stage(f"downloading {entry.repo}", total_bytes) as advance, following_size(folder, advance):
        _download(entry, folder, list(sizes))
    for name, size in sizes.items():
        if (folder / name).stat().st_size != size:
            raise HubUnavailableError(f"{name} arrived with {(folder / name).stat().st_size} of {size} bytes")


def needed(path: str) -> bool:
    """Whether a file is needed: top-level weights, tokenizer and configuration, but no other formats and logs."""
    return path in _NEEDED_NAMES or ("/" not in path and path.endswith(".safetensors"))


def _list_needed_files(entry: CatalogEntry) -> dict[str, int]:
    listing = answer_within(HUB_ANSWER_DEADLINE_S, lambda: _list_files(entry, HUB_ANSWER_DEADLINE_S))
    sizes = {path: size for path, size in listing.items() if needed(path)}
    if "config.json" not in sizes or not any(path.endswith(".safetensors") for path in sizes):
        raise HubUnavailableError(f"{entry.repo} at {entry.revision[:8]} has no config.json with safetensors weights")
    return sizes


def _list_files(entry: CatalogEntry, timeout_s: float) -> dict[str, int]:
    """The repository's files and their sizes."""
    from huggingface_hub import HfApi

    # Unlike the listing of a repository's tree, this request is not retried when it fails.
    info = HfApi().model_info(entry.repo, revision=entry.revision, files_metadata=True, timeout=timeout_s)
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def _download(entry: CatalogEntry, folder: Path, paths: list[str]) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(
            entry.repo, revision=entry.revision, local_dir=folder, allow_patterns=paths, tqdm_class=hidden_bar()
        )
    except OSError as error:
        if is_storage_error(error):
            raise
        raise HubUnavailableError(reason(error)) from error
    except Exception as error:
        # The types of the client's HTTP library differ between its releases.
        raise HubUnavailableError(reason(error)) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
