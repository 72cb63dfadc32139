"""A model's files from the Hugging Face hub, at the catalog's commit.

Whatever keeps the hub from serving them (no network, no such commit, a broken transfer) is a `HubUnavailableError`, so
that the caller can go on to another source. A machine without the hub finds out within `HUB_ANSWER_DEADLINE_S`.
"""

import shutil
import threading
from pathlib import Path
from typing import Any

from rstar2.errors import InfrastructureError
from rstar2.models.catalog import CatalogEntry
from rstar2.models.progress import Progress, following_size
from rstar2.models.storage import is_storage_error, require_free

# A hub that is there lists a repository in well under a second. The client's own limits are per attempt and per
# address and do not cover name resolution, so together they can reach minutes.
HUB_ANSWER_DEADLINE_S = 6.0

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


class HubUnavailableError(InfrastructureError):
    """The hub did not serve the model; the message says why in a few words."""


def fetch_from_hub(entry: CatalogEntry, folder: Path, progress: Progress) -> None:
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
    """Top-level weights, tokenizer and configuration; repositories also hold other formats and training logs."""
    return path in _NEEDED_NAMES or ("/" not in path and path.endswith(".safetensors"))


def _list_needed_files(entry: CatalogEntry) -> dict[str, int]:
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise HubUnavailableError("HF_HUB_OFFLINE is set")
    listing = _answer_within(HUB_ANSWER_DEADLINE_S, entry)
    sizes = {path: size for path, size in listing.items() if needed(path)}
    if "config.json" not in sizes or not any(path.endswith(".safetensors") for path in sizes):
        raise HubUnavailableError(f"{entry.repo} at {entry.revision[:8]} has no config.json with safetensors weights")
    return sizes


def _answer_within(deadline_s: float, entry: CatalogEntry) -> dict[str, int]:
    """The repository's files and their sizes, or HubUnavailableError when the deadline has passed."""
    from huggingface_hub import HfApi

    answer: dict[str, int] = {}
    failures: list[Exception] = []

    def ask() -> None:
        try:
            # Unlike the listing of a repository's tree, this request is not repeated when it fails.
            info = HfApi().model_info(entry.repo, revision=entry.revision, files_metadata=True, timeout=deadline_s)
            answer.update({file.rfilename: file.size or 0 for file in info.siblings or ()})
        except Exception as error:
            failures.append(error)

    # A daemon: a name lookup cannot be cancelled, and must not keep the process from ending either.
    asking = threading.Thread(target=ask, daemon=True, name="asking the hub")
    asking.start()
    asking.join(deadline_s)
    if asking.is_alive():
        raise HubUnavailableError(f"no answer within {deadline_s:g} s")
    if failures:
        raise HubUnavailableError(_reason(failures[0])) from failures[0]
    return answer


def _download(entry: CatalogEntry, folder: Path, paths: list[str]) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class HiddenBar(tqdm):
        """The client always draws; our own bar shows the same bytes."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

    try:
        snapshot_download(
            entry.repo, revision=entry.revision, local_dir=folder, allow_patterns=paths, tqdm_class=HiddenBar
        )
    except OSError as error:
        if is_storage_error(error):
            raise
        raise HubUnavailableError(_reason(error)) from error
    except Exception as error:
        # The types of the client's HTTP library differ between its releases.
        raise HubUnavailableError(_reason(error)) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
