"""Reads the text of single tokens from a model's `tokenizer.json`, so that a trace can be shown token by token.

It needs no tokenizer library: a viewer only needs the reverse of the vocabulary. Byte-level vocabularies (Qwen, Llama
3, SmolLM2, GPT) write each byte as a printable character; others write a space as `▁`. A token that holds part of a
character shows as the replacement character.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from rstar2.errors import UserError


def _byte_of_letter() -> dict[str, int]:
    """The alphabet of byte-level vocabularies: printable Latin-1 is unchanged, the rest is mapped to 256 and above."""
    itself = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + n): byte for n, byte in enumerate(moved)}


_BYTES = _byte_of_letter()


class Vocabulary:
    """Maps ids to texts. An unknown id is shown as its number."""

    def __init__(self, texts: dict[int, str]) -> None:
        self._texts = texts

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a `tokenizer.json`, or the folder that holds one."""
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            vocabulary = _ids_by_token(document["model"]["vocab"])
            control = {int(token["id"]): str(token["content"]) for token in document.get("added_tokens", ())}
            is_byte_level = '"ByteLevel"' in json.dumps([document.get("pre_tokenizer"), document.get("decoder")])
            texts = {number: _text(token, is_byte_level) for token, number in vocabulary.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is not a tokenizer that can be shown: {error}") from error
        return cls(texts | control)

    @classmethod
    def of_run(cls, path: Path) -> Self | None:
        """The vocabulary of the run's own tokenizer; None if it cannot be shown: the viewer also works without token
        texts."""
        try:
            return cls.read(path / "tokenizer")
        except UserError:
            return None

    def __call__(self, token_ids: Sequence[int]) -> list[str]:
        return [self._texts.get(token_id, f"[{token_id}]") for token_id in token_ids]


def _ids_by_token(vocabulary: dict[str, int] | list[list[Any]]) -> dict[str, int]:
    """Ids by token. A unigram vocabulary is a list of tokens with scores; ids are places."""
    if isinstance(vocabulary, dict):
        return vocabulary
    return {str(token): number for number, (token, _) in enumerate(vocabulary)}


def _text(token: str, is_byte_level: bool) -> str:
    if is_byte_level and all(letter in _BYTES for letter in token):
        return bytes(_BYTES[letter] for letter in token).decode("utf-8", "replace")
    return token.replace("▁", " ")
