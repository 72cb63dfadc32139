"""A tokenizer that needs no model, for servers that speak only text and for scripts.

A token is at most four bytes of one word, packed into its id, so there is no vocabulary to keep and a text has about as
many tokens as real tokenizers give it. Conversations are rendered as ChatML, and `messages_of` reads them back.
"""

import re
from collections.abc import Sequence

from rstar2.engine.protocol import Message

START, END = "<|im_start|>", "<|im_end|>"
START_ID, END_ID = 0, 1
BYTES_PER_TOKEN = 4

_MARK_IDS = {START: START_ID, END: END_ID}
_MARKS = re.compile("|".join(map(re.escape, _MARK_IDS)))
_WORD = re.compile(r" ?\w+|\s+|[^\w\s]+")


class PlainTextTokenizer:
    control_tokens = (START, END)
    stop_token_ids = (END_ID,)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        start = 0
        for mark in _MARKS.finditer(text):
            ids += self.encode_content(text[start : mark.start()])
            ids.append(_MARK_IDS[mark[0]])
            start = mark.end()
        return ids + self.encode_content(text[start:])

    def encode_content(self, text: str) -> list[int]:
        """The ids of a text like `encode`'s, but with marks in it encoded as plain characters."""
        return [
            int.from_bytes(b"\x01" + word[start : start + BYTES_PER_TOKEN])
            for word in (found[0].encode("utf-8", "replace") for found in _WORD.finditer(text))
            for start in range(0, len(word), BYTES_PER_TOKEN)
        ]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(_bytes_of, token_ids)).decode("utf-8", "replace")

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation, and the opening of the assistant's next turn."""
        turns = [f"{START}{message['role']}\n{message['content']}{END}\n" for message in messages]
        return "".join(turns) + f"{START}assistant\n"

    def messages_of(self, token_ids: Sequence[int]) -> tuple[list[Message], str]:
        """The closed turns of a rendering, and the text of the assistant's open turn."""
        messages: list[Message] = []
        start: int | None = None
        for index, token_id in enumerate(token_ids):
            if token_id == START_ID:
                start = index + 1
            elif token_id == END_ID and start is not None:
                role, _, content = self.decode(token_ids[start:index]).partition("\n")
                messages.append({"role": role, "content": content})
                start = None
        opening = "" if start is None else self.decode(token_ids[start:]).partition("\n")[2]
        return messages, opening


def _bytes_of(token_id: int) -> bytes:
    if token_id in (START_ID, END_ID):
        return (START if token_id == START_ID else END).encode()
    return token_id.to_bytes(BYTES_PER_TOKEN + 1).lstrip(b"\x00")[1:]
