"""The gateway: one address with the API of a single sandbox, and nodes that join and leave behind it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from aiohttp import web
from pydantic import JsonValue

from rstar2.errors import UserError
from rstar2.sandbox.executor import Overloaded
from rstar2.sandbox.http import AnswerGrader, Load, ServiceSettings, create_app
from rstar2.sandbox.http.schema import NodeInfo
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.pool.executor import LEAVE_DEADLINE_S, PoolExecutor
from rstar2.sandbox.pool.node import NodeState
from rstar2.sandbox.pool.remote_node import RemoteNode

MAX_NODES = 4096


class Gateway:
    """Satisfies the service's `Nodes`. All nodes are reached with the token that the gateway's callers use."""

    def __init__(self, pool: PoolExecutor, token: str) -> None:
        self._pool = pool
        self._token = token
        self._leaving: set[asyncio.Task[bool]] = set()

    def nodes(self) -> Sequence[NodeInfo]:
        return self._pool.nodes()

    def join(self, url: str, address: str | None = None, *, is_fixed: bool = False) -> NodeInfo:
        name = url.rstrip("/")
        node = self._pool.table.get(name)
        if node is not None and node.state is not NodeState.READY and node.address not in (None, address):
            # The node was started again on another machine, under the same name.
            self._pool.table.drop(node, "it joined again from another address")
            node = None
        if node is None:
            if len(self._pool.table) >= MAX_NODES:
                raise Overloaded(retry_after_s=60.0)
            remote = RemoteNode(name, self._token, address)
            node = self._pool.table.add(name, remote, 1, remote.probe, is_fixed=is_fixed)
            node.address = address
        elif node.state is not NodeState.READY:
            node.wake.set()
        return node.info()

    def leave(self, url: str) -> NodeInfo | None:
        node = self._pool.table.get(url.rstrip("/"))
        if node is None:
            return None
        if not node.is_leaving:
            self._pool.table.start_leaving(node)
            task = asyncio.create_task(self._pool.table.finish_leaving(node, LEAVE_DEADLINE_S))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return node.info()

    def load(self) -> Load:
        ready = [node for node in self._pool.table if node.state is NodeState.READY]
        num_slots = sum(node.num_slots for node in ready)
        num_outstanding = sum(node.num_outstanding for node in self._pool.table)
        return Load(
            num_slots=num_slots,
            num_busy_slots=min(num_outstanding, num_slots),
            num_queued=self._pool.num_queued,
            num_cores=num_slots,
        )

    def guarantees(self) -> list[Mapping[str, JsonValue]]:
        """The guarantees that every node that has answered gives."""
        tables = [node.report.guarantees for node in self._pool.table if node.report]
        return [asdict(row) for row in guarantees.weakest(tables)]


def create_gateway(
    pool: PoolExecutor, gateway: Gateway, settings: ServiceSettings, grader: AnswerGrader
) -> web.Application:
    if settings.token is None:
        raise UserError("token: a gateway needs one; without it any client could join a node and read all programs")
    return create_app(
        pool,
        settings,
        grader=grader,
        guarantees=gateway.guarantees,
        load=gateway.load,
        nodes=gateway,
        backend="nodes",
    )
