"""The seam between text and ids, as engines that are given text need it.

Invariant of an implementation: `decode(encode(text)) == text`, and a control token in a text becomes its id.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, str]
"""One turn of a conversation, with the keys `role` and `content`."""


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """The ids of exactly this text: nothing is put before or after it."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of exactly these ids, control tokens included."""
        ...
