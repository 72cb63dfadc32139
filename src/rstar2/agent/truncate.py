"""Long tool output, cut to a number of tokens: head and tail stay, and a line between them says how much is gone.

Invariant: the cut text has at most `max_tokens` tokens. Pure.
"""

from rstar2.engine.protocol import Tokenizer

LONGEST_TOKEN_CHARS = 16
"""Only so many characters for each token allowed are looked at from either end: tokens are shorter but for runs of
spaces, and a megabyte of output must not cost a second of tokenizing."""


def cut(text: str, max_tokens: int, tokenizer: Tokenizer) -> tuple[str, int]:
    """The text that fits, and how many of the original characters are not in it."""
    if len(text) < max_tokens and text.isascii():  # no character is more than one token
        return text, 0
    window = max_tokens * LONGEST_TOKEN_CHARS
    if len(text) <= 2 * window and len(tokenizer.encode(text)) <= max_tokens:
        return text, 0
    head_ids, tail_ids = tokenizer.encode(text[:window]), tokenizer.encode(text[-window:])
    num_kept = max_tokens
    while num_kept > 0:
        head = _starting(text, tokenizer.decode(head_ids[: num_kept - num_kept // 2]))
        tail = _ending(text[len(head) :], tokenizer.decode(tail_ids[max(0, len(tail_ids) - num_kept // 2) :]))
        num_cut_chars = len(text) - len(head) - len(tail)
        shortened = f"{head}\n[... {num_cut_chars} characters cut ...]\n{tail}"
        excess = len(tokenizer.encode(shortened)) - max_tokens
        if excess <= 0:
            return shortened, num_cut_chars
        num_kept -= excess
    return "", len(text)


def _starting(text: str, piece: str) -> str:
    """As much of `piece` as `text` starts with: a cut between tokens may go through a character."""
    while not text.startswith(piece):
        piece = piece[:-1]
    return piece


def _ending(text: str, piece: str) -> str:
    while not text.endswith(piece):
        piece = piece[1:]
    return piece
