"""A model's files from the Hugging Face hub, at the catalog's commit.

Whatever keeps the hub from serving them (no network, no such commit, a broken transfer) is a `HubUnavailableError`, so
that the caller can go on to another source. A machine without the hub finds out within `HUB_ANSWER_DEADLINE_S`.
"""

import shutil
from pathlib import Path

from rstar2.models.catalog import CatalogEntry
from rstar2.models.hub_client import HUB_ANSWER_DEADLINE_S, HubUnavailableError, answer_within, hidden_bar, reason
from rstar2.models.progress import Progress, following_size
from rstar2.models.storage import is_storage_error, require_free

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
    listing = answer_within(HUB_ANSWER_DEADLINE_S, lambda: _list_files(entry, HUB_ANSWER_DEADLINE_S))
    sizes = {path: size for path, size in listing.items() if needed(path)}
    if "config.json" not in sizes or not any(path.endswith(".safetensors") for path in sizes):
        raise HubUnavailableError(f"{entry.repo} at {entry.revision[:8]} has no config.json with safetensors weights")
    return sizes


def _list_files(entry: CatalogEntry, timeout_s: float) -> dict[str, int]:
    """The repository's files and their sizes."""
    from huggingface_hub import HfApi

    # Unlike the listing of a repository's tree, this request is not repeated when it fails.
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
