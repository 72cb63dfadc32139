"""The operators' endpoints: whether the service is ready, how busy it is, and which nodes a gateway has."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aiohttp import web
from pydantic import JsonValue, TypeAdapter

import rstar2
from rstar2.errors import UserError
from rstar2.sandbox.http.errors import ApiError
from rstar2.sandbox.http.node_address import check_node_address
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import NODE, NODE_INFO, NodeInfo
from rstar2.sandbox.http.service import Service
from rstar2.sandbox.http.session_table import SessionTable

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Nodes(Protocol):
    """The nodes behind a gateway."""

    def nodes(self) -> Sequence[NodeInfo]: ...

    def join(self, url: str, address: str) -> NodeInfo:
        """Add a node. The gateway calls it at `address`, whatever its host name resolves to; it gets calls once it has
        answered a probe. Joining twice changes nothing. UserError if `url` cannot be a node's address."""
        ...

    def leave(self, url: str) -> NodeInfo | None:
        """Send the node no new calls, and remove it when its running calls have finished; None if it is not known."""
        ...


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
    """Cores that programs can use; a gateway weighs its nodes by it."""
    num_in_flight: int
    num_sessions: int
    num_retained_results: int
    executions: dict[str, int]
    """Finished executions by status."""
    responses: dict[str, int]
    """HTTP responses by status code."""
    backend: str
    """The isolation of programs: `linux`, `gvisor` or `none`; for a gateway, `nodes`."""
    guarantees: list[dict[str, JsonValue]]
    """The isolation guarantees of this machine; for a gateway, those that all its nodes give."""
    nodes: list[NodeInfo]
    """The nodes of a gateway; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class Index:
    """Instructions for people who open the service's address."""

    service: str = "rstar2 sandbox: runs untrusted Python"
    token: str = "send it as `Authorization: Bearer TOKEN`; the service printed it at its start"
    run: str = 'POST /v1/run {"code": "print(1 + 1)"}'
    batch: str = 'POST /v1/batch {"runs": [{"code": "print(1)"}, {"code": "print(2)"}]}'
    notebook: str = 'POST /v1/sessions {}, then POST /v1/sessions/ID/cells {"code": "x = 1"}'
    stream: str = 'POST /v1/run/stream {"code": "print(1 + 1)"}'
    every_endpoint: str = "GET /openapi.json"
    health: str = "GET /healthz"


INDEX = TypeAdapter(Index)
HEALTH = TypeAdapter(Health)
STATUS = TypeAdapter(Status)
TEXT = TypeAdapter(str)
DOCUMENT = TypeAdapter(dict[str, JsonValue])


class SystemApi:
    def __init__(
        self, service: Service, sessions: SessionTable, nodes: Nodes | None = None, backend: str = "linux"
    ) -> None:
        self._service = service
        self._backend = backend
        self._sessions = sessions
        self._nodes = nodes
        self._document = b"{}"

    def operations(self) -> list[Operation]:
        get = partial(Operation, "GET", tag="system")
        healthy = ApiAnswer("It is.", HEALTH), ApiAnswer("It is not: the service is draining.", HEALTH, 503)
        status = (ApiAnswer("The state of the service.", STATUS),)
        metrics = (ApiAnswer("Prometheus text format.", TEXT, content_type="text/plain"),)
        operations = [
            get(
                "/", self.index, "Where to go. Needs no token.", (ApiAnswer("The way.", INDEX),), extra={"security": []}
            ),
            get("/healthz", self.health, "Whether new work is taken. Needs no token.", healthy, extra={"security": []}),
            get("/status", self.status, "Load, counters and the table of guarantees.", status),
            get("/metrics", self.metrics, "Counters and histograms for Prometheus.", metrics),
            get("/openapi.json", self.openapi, "This document.", (ApiAnswer("OpenAPI 3.1.", DOCUMENT),)),
        ]
        if self._nodes is not None:
            joined, left = (
                ApiAnswer("The node as the gateway knows it.", NODE_INFO),
                ApiAnswer("It drains.", NODE_INFO, 202),
            )
            summary = "Leave: no new calls; running calls finish first."
            operations += [
                Operation("POST", "/nodes", self.join, "Join, or repeat it.", (joined,), NODE, tag="nodes"),
                Operation("DELETE", "/nodes", self.leave, summary, (left,), NODE, refusals=(404,), tag="nodes"),
            ]
        return operations

    def publish(self, document: dict[str, JsonValue]) -> None:
        self._document = json.dumps(document).encode()

    @property
    def _state(self) -> str:
        return "draining" if self._service.draining else "ready"

    def _node_infos(self) -> Sequence[NodeInfo]:
        return self._nodes.nodes() if self._nodes else ()

    async def index(self, _: web.Request) -> web.Response:
        return json_response(INDEX.dump_json(Index()))

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
            backend=self._backend,
            guarantees=[dict(row) for row in service.guarantees()],
            nodes=list(self._node_infos()),
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
        text = service.metrics.render(gauges, self._node_infos())
        return web.Response(body=text.encode(), headers={"Content-Type": PROMETHEUS})

    async def openapi(self, _: web.Request) -> web.Response:
        return json_response(self._document)

    async def join(self, request: web.Request) -> web.Response:
        assert self._nodes is not None, "the operation exists only on a gateway"
        url = (await read_body(self._service, request, NODE)).url
        try:
            caller = request.remote or ""
            await check_node_address(url, caller)
            return json_response(NODE_INFO.dump_json(self._nodes.join(url, caller)))
        except UserError as error:
            raise ApiError(422, "invalid", str(error)) from None

    async def leave(self, request: web.Request) -> web.Response:
        assert self._nodes is not None, "the operation exists only on a gateway"
        info = self._nodes.leave((await read_body(self._service, request, NODE)).url)
        if info is None:
            raise ApiError(404, "no_node", "there is no node with this url")
        return json_response(NODE_INFO.dump_json(info), 202)
