"""A node's standing with its gateway: it joins, says again and again that it is there, and leaves when it stops.

Saying it again is what lets a gateway that was restarted find its nodes: it keeps no file of them.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.schema import NodeInfo

HEARTBEAT_S = 5.0
ANSWER_DEADLINE_S = 5.0


class Membership:
    def __init__(self, gateway_url: str, token: str, say: Callable[[str], None]) -> None:
        self._gateway_url = gateway_url
        self._own_url = ""
        self._client = RemoteExecutor(gateway_url, token, is_patient=False, max_connections=1)
        self._say = say
        self._beating: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def start(self, own_url: str) -> None:
        """`own_url` is where the gateway reaches the node."""
        self._own_url = own_url
        self._beating = asyncio.create_task(self._beat(), name="join the gateway")

    def start_leaving(self) -> None:
        if self._leaving is None and self._beating is not None:
            self._beating.cancel()
            self._leaving = asyncio.create_task(self._leave(), name="leave the gateway")

    async def end(self) -> None:
        """Left, or the gateway could not be told: it will notice by itself."""
        self.start_leaving()
        if self._leaving is not None:
            await self._leaving
        await self._client.close()

    async def _beat(self) -> None:
        last_said = ""
        while True:
            try:
                known = await self._send("POST")
                news = f"joined the gateway at {self._gateway_url} as {self._own_url}"
                if known.message:
                    news = f"warning: the gateway at {self._gateway_url} gives no calls to this node: {known.message}"
            except (InfrastructureError, UserError) as error:
                news = f"warning: not joined to the gateway, trying again: {error}"
            if news != last_said:
                self._say(news)
                last_said = news
            await asyncio.sleep(HEARTBEAT_S)

    async def _leave(self) -> None:
        with contextlib.suppress(InfrastructureError, UserError):
            await self._send("DELETE")

    async def _send(self, method: str) -> NodeInfo:
        body = json.dumps({"url": self._own_url}).encode()
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        return await self._client.call(method, "/nodes", body, deadline, schema.NODE_INFO.validate_json)
