"""The playground's interface: an agent server that the page calls like any other client.

The command that starts the viewer passes it, so the viewer depends on neither engines nor agents.
"""

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

MAX_QUESTION_BYTES = 1 << 16


class Playground(Protocol):
    @property
    def models(self) -> Sequence[str]:
        """The names to choose from."""
        ...

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /v1/chat/completions` as `rstar2 serve --agent` does. Cancelling it ends the episode."""
        ...
