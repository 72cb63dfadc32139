"""Work that is not left half done when its run is interrupted."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def uninterrupted(work: Coroutine[Any, Any, Result], on_interrupt: Callable[[], object] = lambda: None) -> Result:
    """To its end, even if whoever waits for it is cancelled meanwhile: then `on_interrupt` is called, and the
    cancellation is raised when the work is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        on_interrupt()
        await task
        raise
