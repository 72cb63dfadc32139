"""A node that is a sandbox service on another machine, from both sides: the pool calls and probes it (`RemoteNode`),
and the node joins and leaves its gateway (`Membership`).

A node joins again at each heartbeat, so a restarted gateway finds its nodes without storing them.
"""

import asyncio
import contextlib
import ipaddress
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from aiohttp.abc import AbstractResolver, ResolveResult
from pydantic import Field, TypeAdapter

from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http import schema
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.pool.node import NodeReport

PROBE_DEADLINE_S = 60.0
"""An upper bound; the pool gives each probe a much shorter deadline."""
MAX_STATUS_BYTES = 1 << 20
MAX_CORES = 1 << 16
"""A bound on claimed cores: a node that claims more would get all calls."""
HEARTBEAT_S = 5.0
JOIN_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The part of the service's status that a probe needs."""

    status: str
    num_cores: Annotated[int, Field(le=MAX_CORES)]
    guarantees: list[Guarantee]


_ANSWER = TypeAdapter(_Answer)


class PinnedResolver(AbstractResolver):
    """Resolves a node's name to the address that it joined from, whatever DNS says later: whoever can change DNS must
    not choose whom the gateway calls with its token."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family  # the address determines its family
        own = socket.AF_INET6 if ipaddress.ip_address(self.address).version == 6 else socket.AF_INET
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [ResolveResult(hostname=host, host=self.address, port=port, family=own, proto=0, flags=flags)]

    async def close(self) -> None:
        pass


class RemoteNode(RemoteExecutor):
    """A remote sandbox without retries: the pool has other nodes. Probes use a separate connection, so that an answer
    does not wait behind the calls, and send the token, so that a node that would refuse calls gets none. A node whose
    isolation is below the minimum counts as not answering: it must not get programs. `address` overrides DNS for the
    URL's host."""

    def __init__(self, base_url: str, token: str | None = None, address: str | None = None) -> None:
        resolver = None if address is None else PinnedResolver(address)
        super().__init__(base_url, token, retries=False, resolver=resolver)
        self._prober = RemoteExecutor(base_url, token, retries=False, max_connections=1, resolver=resolver)

    async def probe(self) -> NodeReport:
        deadline = time.monotonic() + PROBE_DEADLINE_S
        answer = await self._prober.call("GET", "/status", None, deadline, _ANSWER.validate_json, MAX_STATUS_BYTES)
        if lacking := guarantees.lacking(answer.guarantees):
            raise InfrastructureError(f"it isolates less than a node must: it lacks {'; '.join(lacking)}")
        return NodeReport(answer.status == "draining", answer.num_cores, answer.guarantees)

    async def close(self) -> None:
        await self._prober.close()
        await super().close()


class Membership:
    def __init__(self, gateway_url: str, token: str, say: Callable[[str], None]) -> None:
        self._gateway_url = gateway_url
        self._own_url = ""
        self._client = RemoteExecutor(gateway_url, token, retries=False, max_connections=1)
        self._say = say
        self._joining: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None

    def start(self, own_url: str) -> None:
        """Keep the node joined; `own_url` is where the gateway reaches it."""
        self._own_url = own_url
        self._joining = asyncio.create_task(self._keep_joined(), name="join the gateway")

    def start_leaving(self) -> None:
        if self._leaving is None and self._joining is not None:
            self._joining.cancel()
            self._leaving = asyncio.create_task(self._leave(), name="leave the gateway")

    async def end(self) -> None:
        """Leave the gateway, or return without its answer; its probes then notice it."""
        self.start_leaving()
        if self._leaving is not None:
            await self._leaving
        await self._client.close()

    async def _keep_joined(self) -> None:
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
        deadline = time.monotonic() + JOIN_DEADLINE_S
        return await self._client.call(method, "/nodes", body, deadline, schema.NODE_INFO.validate_json)
