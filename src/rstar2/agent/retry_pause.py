"""How long to wait before what failed through our fault is tried again."""

from rstar2.sandbox.executor import Overloaded

FIRST_PAUSE_S = 0.1
"""Doubled with every attempt: a worker is replaced within a second."""


def pause_s(attempt: int, error: BaseException | None = None) -> float:
    """After the attempt of that number, counted from 0."""
    if isinstance(error, Overloaded):
        return error.retry_after_s
    return FIRST_PAUSE_S * float(2**attempt)
