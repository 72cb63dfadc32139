"""How a node stays known to its gateway, and what a gateway makes of addresses that are none."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest
from sandbox_service import EqualityGrader, GateExecutor, service, until

from rstar2.sandbox import Request
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.http import Server, ServiceSettings
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.pool import HealthConfig, PoolExecutor, remote_node
from rstar2.sandbox.pool.gateway import Gateway, create_gateway
from rstar2.sandbox.pool.remote_node import Membership

pytestmark = pytest.mark.integration
TOKEN = "a-token-of-the-tests"
HEALTH = HealthConfig(period_s=0.05)


@asynccontextmanager
async def gateway_on(port: int) -> AsyncIterator[tuple[str, PoolExecutor]]:
    async with PoolExecutor(health=HEALTH) as pool:
        app = create_gateway(pool, Gateway(pool, TOKEN), ServiceSettings(token=TOKEN), EqualityGrader())
        server = Server(app)
        listener = socket.create_server(("127.0.0.1", port))
        await server.start([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", pool
        finally:
            await server.drain(0.0)


def full_table() -> list[dict[str, Any]]:
    """What a node says that isolates as it must."""
    return [asdict(replace(row, provided=True)) for row in guarantees.of_plain_subprocesses()]


def states(pool: PoolExecutor) -> dict[str, str]:
    return {node.url: node.state for node in pool.nodes()}


async def test_a_gateway_that_was_restarted_finds_its_nodes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_node, "HEARTBEAT_S", 0.05)
    said: list[str] = []
    async with service(GateExecutor(), ServiceSettings(token=TOKEN), guarantees=full_table) as node:
        async with gateway_on(0) as (url, pool):
            standing = Membership(url, TOKEN, said.append)
            standing.start(node.url)
            await until(lambda: states(pool) == {node.url: "ready"}, 30.0)
        await until(lambda: said[-1].startswith("warning: not joined"), 30.0)
        async with gateway_on(int(url.rpartition(":")[2])) as (_, pool):
            await until(lambda: states(pool) == {node.url: "ready"}, 30.0)
            async with RemoteExecutor(url, TOKEN) as caller:
                assert (await caller.run(Request("pass"))).ok
            await standing.end()
            await until(lambda: states(pool) == {}, 30.0)
        assert said[0] == said[-1] == f"joined the gateway at {url} as {node.url}"


async def test_a_node_with_another_token_is_told_so_and_gets_no_calls() -> None:
    said: list[str] = []
    async with service(GateExecutor(), ServiceSettings(token="another")) as node, gateway_on(0) as (url, pool):
        standing = Membership(url, "another", said.append)
        standing.start(node.url)
        await until(lambda: bool(said), 30.0)
        await standing.end()
        assert "does not accept it" in said[0]
        Gateway(pool, TOKEN).join(node.url)
        await until(lambda: states(pool) == {node.url: "lost"}, 30.0)
        assert "does not accept it" in pool.nodes()[0].message


async def test_a_node_that_isolates_too_little_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_node, "HEARTBEAT_S", 0.05)
    said: list[str] = []
    async with service(GateExecutor(), ServiceSettings(token=TOKEN)) as node, gateway_on(0) as (url, pool):
        standing = Membership(url, TOKEN, said.append)
        standing.start(node.url)
        await until(lambda: states(pool) == {node.url: "lost"}, 30.0)
        await until(lambda: "gives no calls to this node" in said[-1], 30.0)
        await standing.end()
        assert "files of the machine are out of reach" in said[-1]


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.7:80",
        "http://[2001:db8::1]:8765",
        "http://127.0.0.1:8765/latest/meta-data",
        "http://127.0.0.1:8765?token=1",
        "http://user:password@127.0.0.1:8765",
        "file:///etc/passwd",
        "http://169.254.169.254",
    ],
)
async def test_a_gateway_calls_nobody_but_the_machine_that_joins(url: str) -> None:
    async with gateway_on(0) as (gateway_url, pool), RemoteExecutor(gateway_url, TOKEN) as caller:
        async with caller._connected().post(f"{gateway_url}/nodes", json={"url": url}) as response:
            assert response.status == 422
            assert "url" in await response.text()
        assert states(pool) == {}


@pytest.mark.parametrize("path", ["http://[", "http://", "ftp://x", "", "http://a..b", "http://x:99999", "http://\x00"])
async def test_no_address_harms_the_gateway(path: str) -> None:
    async with gateway_on(0) as (url, pool), RemoteExecutor(url, TOKEN) as caller:
        async with caller._connected().post(f"{url}/nodes", json={"url": path}) as response:
            assert response.status in (200, 422)
        await asyncio.sleep(0.2)
        assert set(states(pool).values()) <= {"joining", "lost"}
        async with caller._connected().get(f"{url}/metrics") as response:
            assert response.status == 200
