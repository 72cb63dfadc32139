"""What runs below a process, and waiting for it to change."""

import asyncio
from collections.abc import Callable
from pathlib import Path

DEADLINE_S = 240.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is about other processes
            await asyncio.sleep(0.005)


def descendants(pid: int) -> frozenset[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return frozenset()
    children = frozenset(map(int, text.split()))
    return children.union(*map(descendants, children))


def is_running(pid: int) -> bool:
    """Alive, and not merely waiting to be reaped by an init that takes its time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"
