"""The text of each token. Traces hold ids and the text of each turn; only the model's tokenizer can say which token is
which word.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rstar2.errors import UserError


class TokenTexts(Protocol):
    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """One piece of text for each id; joined, they are the text of all ids. A token that ends inside a character may
        have an empty piece; the character belongs to the token that completes it."""
        ...


class TokenizerFile:
    """Satisfies `TokenTexts` with a `tokenizer.json`. Needs the tokenizers library, which the `train` extra brings."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path} is not a tokenizer that can be loaded: {error}") from error
        self._path = path
        self._num_ids = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        from tokenizers.decoders import DecodeStream

        if token_ids and max(token_ids) >= self._num_ids:
            raise UserError(
                f"{self._path} has {self._num_ids} tokens, but a trace holds id {max(token_ids)}: "
                f"give the tokenizer of the model that the run used (--tokenizer)"
            )
        stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self._tokenizer, token_id) or "" for token_id in token_ids]
        if pieces:
            # A turn may be cut inside a character; the text that the stream still holds back belongs to the last token.
            text = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
            shown = "".join(pieces)
            pieces[-1] += text[len(shown) :] if text.startswith(shown) else ""
        return pieces


def find_token_texts(run: Path, given: Path | None) -> tuple[TokenTexts | None, str]:
    """The run's tokenizer, or the one that the user gave; or None, and the sentence that says why there is none."""
    if given is not None:
        path = given / "tokenizer.json" if given.is_dir() else given
        if not path.is_file():
            raise UserError(f"--tokenizer {given}: there is no such file, nor a tokenizer.json in such a folder")
    else:
        path = run / "tokenizer" / "tokenizer.json"
        if not path.is_file():
            return None, (
                "The run holds no tokenizer (tokenizer/tokenizer.json), so tokens have no text: no classes, no words. "
                "Give the model's folder with --tokenizer."
            )
    try:
        return TokenizerFile(path), ""
    except ImportError:
        install = "pip install 'rstar2[train]'"
        if given is not None:
            raise UserError(f"--tokenizer needs the tokenizers library: run `{install}`") from None
        return None, f"The tokenizers library is not installed, so tokens have no text: run `{install}`."
