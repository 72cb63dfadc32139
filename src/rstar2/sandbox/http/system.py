"""What operators and programs ask of the service itself: is it ready, what does it hold, how busy is it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from pydantic import JsonValue, TypeAdapter

import rstar2
from rstar2.sandbox.http.operation import Answer, Operation, json_response
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.sessions import SessionTable

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Health:
    status: str
    """`ready` or `draining`."""


@dataclass(frozen=True, slots=True)
class Status:
    """`queue` and `num_workers` are also what code-judge's clients read here."""

    version: str
    status: str
    uptime_s: float
    queue: int
    num_workers: int
    num_busy_workers: int
    num_cores: int
    """What programs can use here at a time: a gateway weighs its nodes by it."""
    num_in_flight: int
    num_sessions: int
    num_retained_results: int
    executions: dict[str, int]
    """Finished ones, by how they ended."""
    responses: dict[str, int]
    """HTTP responses, by code."""
    guarantees: list[dict[str, JsonValue]]
    """What the isolation on this machine holds, and what it does not; of a gateway, what it holds on all its nodes."""
    nodes: list[NodeInfo]
    """Of a gateway: whom it gives its work to. Empty elsewhere."""


HEALTH = TypeAdapter(Health)
STATUS = TypeAdapter(Status)
TEXT = TypeAdapter(str)
DOCUMENT = TypeAdapter(dict[str, JsonValue])


class SystemApi:
    def __init__(
        self, service: Service, sessions: SessionTable, nodes: Callable[[], Sequence[NodeInfo]] = tuple
    ) -> None:
        self._service = service
        self._nodes = nodes
        self._sessions = sessions
        self._document = b"{}"

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/healthz",
                self.health,
                "Whether new work is taken. Needs no token.",
                {200: Answer("It is.", HEALTH), 503: Answer("It is not: the service is draining.", HEALTH)},
                tag="system",
                extra={"security": []},
            ),
            Operation(
                "GET",
                "/status",
                self.status,
                "Load, counters and the table of guarantees.",
                {200: Answer("The state of the service.", STATUS)},
                tag="system",
            ),
            Operation(
                "GET",
                "/metrics",
                self.metrics,
                "Counters and histograms for Prometheus.",
                {200: Answer("Prometheus text format.", TEXT, "text/plain")},
                tag="system",
            ),
            Operation(
                "GET",
                "/openapi.json",
                self.openapi,
                "This document.",
                {200: Answer("OpenAPI 3.1.", DOCUMENT)},
                tag="system",
            ),
        ]

    def publish(self, document: dict[str, JsonValue]) -> None:
        self._document = json.dumps(document).encode()

    @property
    def _state(self) -> str:
        return "draining" if self._service.draining else "ready"

    async def health(self, _: web.Request) -> web.Response:
        return json_response(HEALTH.dump_json(Health(self._state)), 503 if self._service.draining else 200)

    async def status(self, _: web.Request) -> web.Response:
        service, load = self._service, self._service.load()
        status = Status(
            version=rstar2.__version__,
            status=self._state,
            uptime_s=time.time() - service.started,
            queue=load.num_queued,
            num_workers=load.num_slots,
            num_busy_workers=load.num_busy_slots,
            num_cores=load.num_cores,
            num_in_flight=service.num_in_flight,
            num_sessions=len(self._sessions),
            num_retained_results=len(service.once),
            executions=dict(service.metrics.executions),
            responses={str(code): count for code, count in service.metrics.responses.items()},
            guarantees=[dict(row) for row in service.guarantees()],
            nodes=list(self._nodes()),
        )
        return json_response(STATUS.dump_json(status))

    async def metrics(self, _: web.Request) -> web.Response:
        service, load = self._service, self._service.load()
        gauges = {
            "in_flight": service.num_in_flight,
            "queue_depth": load.num_queued,
            "workers": load.num_slots,
            "busy_workers": load.num_busy_slots,
            "sessions": len(self._sessions),
            "retained_results": len(service.once),
            "draining": service.draining,
        }
        return web.Response(
            body=service.metrics.render(gauges, self._nodes()).encode(), headers={"Content-Type": PROMETHEUS}
        )

    async def openapi(self, _: web.Request) -> web.Response:
        return json_response(self._document)
