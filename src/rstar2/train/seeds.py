"""One number for each named random choice, made from the recipe's seed: nothing to save, nothing to restore."""

import hashlib


def named_seed(seed: int, *names: str | int) -> int:
    """63 bits that depend on the seed and on every name, in order."""
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
