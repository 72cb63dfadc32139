"""Admits requests up to a limit; draining waits for them.

Invariant: `num_in_flight` is exactly the number of sequences admitted and not yet answered. It never exceeds
`max_in_flight`, and nothing is admitted once draining has begun.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from rstar2.serve.errors import OpenAIError
from rstar2.serve.settings import ServeSettings


class Admission:
    def __init__(self, settings: ServeSettings) -> None:
        self._settings = settings
        self.is_draining = False
        self.num_in_flight = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def admitted(self, num_sequences: int) -> Iterator[None]:
        """Admit `num_sequences` for the duration of the block; OpenAIError at once if there is no room."""
        maximum, wait_s = self._settings.max_in_flight, self._settings.retry_after_s
        if self.is_draining:
            message = "the server is shutting down and takes no new requests"
            raise OpenAIError(503, message, code="draining", retry_after_s=wait_s)
        if num_sequences > maximum:
            raise OpenAIError(
                400, f"n: {num_sequences} sequences are more than the {maximum} that fit here at once", param="n"
            )
        if self.num_in_flight + num_sequences > maximum:
            message = f"over capacity: {self.num_in_flight} of {maximum} sequences are in flight; retry later"
            raise OpenAIError(429, message, code="rate_limit_exceeded", retry_after_s=wait_s)
        self.num_in_flight += num_sequences
        self.idle.clear()
        try:
            yield
        finally:
            self.num_in_flight -= num_sequences
            if not self.num_in_flight:
                self.idle.set()
