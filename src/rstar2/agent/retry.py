"""The retry loop for whatever fails through our fault: a turn, a tool call, a judge."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rstar2.errors import EnvironmentCodeError, InfrastructureError
from rstar2.sandbox.executor import Overloaded

Result = TypeVar("Result")

FIRST_PAUSE_S = 0.1
"""The pause before the first retry: a lost sandbox worker is replaced within a second."""


async def with_retries(
    attempt: Callable[[], Awaitable[Result]],
    max_retries: int,
    *,
    first_pause_s: float = FIRST_PAUSE_S,
    on_retry: Callable[[InfrastructureError], None] = lambda _error: None,
) -> Result:
    """Returns the result of `attempt`. After an InfrastructureError it is called again, at most `max_retries` times;
    the last error is raised. An error of an environment's own code is not retried. The pause before a retry doubles
    each time, unless a full queue says when to come back."""
    for number in range(max_retries):
        try:
            return await attempt()
        except EnvironmentCodeError:
            raise
        except InfrastructureError as error:
            full = next((found for found in (error, error.__cause__) if isinstance(found, Overloaded)), None)
            await asyncio.sleep(full.retry_after_s if full is not None else first_pause_s * 2**number)
            on_retry(error)
    return await attempt()
