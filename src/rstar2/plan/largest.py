"""The largest number for which something still holds. Pure."""

from collections.abc import Callable


def largest(holds: Callable[[int], bool], unit: int, most: int) -> int | None:
    """The largest multiple of `unit`, at most `most`, for which `holds`; None if it holds for none. What holds for a
    number must hold for all smaller ones."""
    if not holds(unit):
        return None
    if holds(most // unit * unit):
        return most // unit * unit
    low, high = 1, 2
    while high * unit < most and holds(high * unit):
        low, high = high, high * 2
    high = min(high, most // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle * unit) else (low, middle)
    return low * unit
