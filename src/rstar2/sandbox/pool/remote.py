"""A node that is a sandbox service on another machine: where its calls go, and how it is asked how it is."""

import time
from dataclasses import dataclass

from pydantic import TypeAdapter

from rstar2.errors import InfrastructureError
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.pool.health import NodeReport

ANSWER_DEADLINE_S = 60.0
"""Against a probe without end; whoever probes has a much shorter one."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The part of the service's status that matters here."""

    status: str
    num_cores: int
    guarantees: list[Guarantee]


_ANSWER = TypeAdapter(_Answer)


class RemoteNode(RemoteExecutor):
    """Retries nothing by itself: the pool has other nodes. It is asked how it is on a connection of its own, so that an
    answer does not wait behind the calls; and with the token, so that a node which would refuse calls gets none. One
    that isolates less than the minimum counts as one that does not answer: no program must land there."""

    def __init__(self, base_url: str, token: str | None = None) -> None:
        super().__init__(base_url, token, is_patient=False)
        self._asking = RemoteExecutor(base_url, token, is_patient=False, max_connections=1)

    async def probe(self) -> NodeReport:
        deadline = time.monotonic() + ANSWER_DEADLINE_S
        answer = await self._asking.call("GET", "/status", None, deadline, _ANSWER.validate_json)
        if lacking := guarantees.lacking(answer.guarantees):
            raise InfrastructureError(f"it isolates less than a node must: it lacks {'; '.join(lacking)}")
        return NodeReport(answer.status == "draining", answer.num_cores, answer.guarantees)

    async def close(self) -> None:
        await self._asking.close()
        await super().close()
