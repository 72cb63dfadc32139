"""A gateway over real `rstar2 sandbox serve` processes, which join, leave, hang and die under load."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import Iterator

import pytest
from sandbox_cluster import TOKEN, SandboxProcess, ask, node_states, wait_until

from rstar2.sandbox import Execution, Limits, Request, Sandbox
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.isolation.guarantees import probe
from rstar2.sandbox.pool import HealthConfig, PoolExecutor, PoolSession, RemoteNode

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        any(row.required and not row.provided for row in probe()), reason="this machine cannot isolate programs"
    ),
]
SLEEPER = "import time; time.sleep(0.1); print({})"


@pytest.fixture(scope="module")
def gateway() -> Iterator[SandboxProcess]:
    gateway = SandboxProcess("gateway")
    yield gateway
    gateway.end()


@pytest.fixture(scope="module")
def node(gateway: SandboxProcess) -> Iterator[SandboxProcess]:
    """One that stays."""
    node = SandboxProcess("serve", "--workers", "4", "--join", gateway.url)
    yield node
    node.end()


@pytest.fixture
def guest(gateway: SandboxProcess, node: SandboxProcess) -> Iterator[SandboxProcess]:
    """One that the test may do anything to."""
    guest = SandboxProcess("serve", "--workers", "4", "--join", gateway.url)
    both = {node.url: "ready", guest.url: "ready"}
    wait_until(lambda: both.items() <= node_states(gateway.url).items(), "both nodes to join")
    yield guest
    guest.end()


async def run_all(executor: RemoteExecutor | PoolExecutor, num_calls: int, found: dict[int, Execution]) -> None:
    async for index, execution in executor.run_many([Request(SLEEPER.format(index)) for index in range(num_calls)]):
        assert index not in found, "answered twice"
        found[index] = execution


def check_all(found: dict[int, Execution], num_calls: int) -> None:
    assert {index: (result.status.value, result.stdout) for index, result in found.items()} == {
        index: ("ok", f"{index}\n") for index in range(num_calls)
    }


async def until_busy(gateway_url: str, url: str, found: dict[int, Execution]) -> None:
    """Some calls are answered, and some are on the node."""

    def is_busy() -> bool:
        nodes = {node["url"]: node for node in ask(gateway_url, "/status")[1]["nodes"]}
        return bool(found) and url in nodes and nodes[url]["num_outstanding"] > 0

    async with asyncio.timeout(240):
        while not await asyncio.to_thread(is_busy):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_it_serves_the_api_of_one_sandbox(gateway: SandboxProcess, node: SandboxProcess) -> None:
    wait_until(lambda: node_states(gateway.url).get(node.url) == "ready", "the node to join")
    status = ask(gateway.url, "/status")[1]
    assert status["num_cores"] == sum(known["num_slots"] for known in status["nodes"] if known["state"] == "ready")
    assert {row["name"] for row in status["guarantees"] if row["required"] and row["provided"]}
    assert f'rstar2_sandbox_node_ready{{node="{node.url}"}} 1' in ask(gateway.url, "/metrics")[1]
    with Sandbox(gateway.url, TOKEN) as sandbox:
        assert sandbox.run("print(6 * 7)").stdout == "42\n"
        with sandbox.session() as notebook:
            notebook.run("x = 41")
            with notebook.fork() as branch:
                branch.run("x = 0")
                assert branch.run("x").value == "0"
            assert notebook.run("x + 1").value == "42"
            notebook.rollback(2)
            assert notebook.run("x").status == "error"
    assert ask(gateway.url, "/v1/grade", {"gold": "1/2", "answer": "0.5"})[1]["verdict"] == "right"


def test_a_batch_streams_as_it_finishes(gateway: SandboxProcess, node: SandboxProcess) -> None:
    wait_until(lambda: node_states(gateway.url).get(node.url) == "ready", "the node to join")
    slow = {"code": "import time; time.sleep(40)", "limits": {"wall_s": 50}}
    body = {"runs": [slow, {"code": "print(1)"}, {"code": "1/0"}]}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{gateway.url}/v1/batch", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=240) as response:
        lines = [json.loads(response.readline()) for _ in range(2)]
    assert {line["index"]: line["result"]["status"] for line in lines} == {1: "ok", 2: "error"}


@pytest.mark.parametrize("token", [None, "wrong"])
def test_nobody_joins_leaves_or_runs_without_the_token(gateway: SandboxProcess, token: str | None) -> None:
    before = node_states(gateway.url)
    intruder = {"url": "http://127.0.0.1:9"}
    assert ask(gateway.url, "/nodes", intruder, token=token)[0] == 401
    assert ask(gateway.url, "/nodes", intruder, method="DELETE", token=token)[0] == 401
    assert ask(gateway.url, "/v1/run", {"code": "1"}, token=token)[0] == 401
    assert ask(gateway.url, "/status", token=token)[0] == 401
    assert node_states(gateway.url).keys() == before.keys()
    assert ask(gateway.url, "/nodes", {"url": "not an address"})[0] == 422
    assert ask(gateway.url, "/nodes", intruder, method="DELETE")[0] == 404


async def test_kill_9_of_a_node_in_the_middle_of_200_calls(gateway: SandboxProcess, guest: SandboxProcess) -> None:
    found: dict[int, Execution] = {}
    async with RemoteExecutor(gateway.url, TOKEN) as executor:
        running = asyncio.create_task(run_all(executor, 200, found))
        await until_busy(gateway.url, guest.url, found)
        guest.kill()
        await running
    check_all(found, 200)
    known = {node["url"]: node for node in ask(gateway.url, "/status")[1]["nodes"]}
    assert known[guest.url]["num_rerun"] > 0
    assert any(result.num_attempts > 1 for result in found.values())
    wait_until(lambda: node_states(gateway.url)[guest.url] == "lost", "the gateway to notice")


async def test_a_node_joins_and_leaves_under_load(gateway: SandboxProcess, node: SandboxProcess) -> None:
    wait_until(lambda: node_states(gateway.url).get(node.url) == "ready", "the node to join")
    batches: list[dict[int, Execution]] = []
    has_left = asyncio.Event()

    async def keep_busy(executor: RemoteExecutor) -> None:
        while not has_left.is_set():
            batches.append({})
            await run_all(executor, 16, batches[-1])

    guest = SandboxProcess("serve", "--workers", "4", "--join", gateway.url)
    try:
        async with RemoteExecutor(gateway.url, TOKEN) as executor, asyncio.TaskGroup() as group:
            group.create_task(keep_busy(executor))
            url = await asyncio.to_thread(lambda: guest.url)
            await until_busy(gateway.url, url, batches[0])
            assert await asyncio.to_thread(guest.stop) == 0
            has_left.set()
    finally:
        guest.end()
    for found in batches:
        check_all(found, 16)
    wait_until(lambda: url not in node_states(gateway.url), "the node to be forgotten")


async def test_a_stopped_node_is_lost_and_taken_back_and_a_session_survives_it(
    node: SandboxProcess, guest: SandboxProcess
) -> None:
    health = HealthConfig(period_s=0.1, deadline_s=1.0, num_failures_to_lose=2)
    found: dict[int, Execution] = {}
    async with PoolExecutor(health=health) as pool, asyncio.timeout(240):
        for each in (node, guest):
            remote = RemoteNode(each.url, TOKEN)
            pool.add_node(each.url, remote, 1, remote.probe)
        notebook = await session_on(pool, guest.url)
        await notebook.run("numbers = [1, 2]")
        await notebook.run("open('kept.txt', 'w').write('kept'); 1 / 0")
        branch = await notebook.fork()
        guest.signal_all(signal.SIGSTOP)
        running = asyncio.create_task(run_all(pool, 40, found))
        assert (await notebook.run("(sum(numbers), open('kept.txt').read())")).value == "(3, 'kept')"
        assert (notebook.node, notebook.num_cells) == (node.url, 3)
        await notebook.rollback(3)
        assert (await notebook.run("numbers")).status == "error"
        assert (await branch.run("numbers.append(3); numbers", limits=Limits(wall_s=5))).value == "[1, 2, 3]"
        await running
        check_all(found, 40)
        assert {known.url: known.state for known in pool.nodes()} == {node.url: "ready", guest.url: "lost"}
        guest.signal_all(signal.SIGCONT)
        while {known.state for known in pool.nodes()} != {"ready"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        again = await session_on(pool, guest.url)
        assert (await again.run("'numbers' in dir()")).value == "False"
        guest.kill()
        assert (await again.run("2 + 2")).value == "4"
        for session in (notebook, branch, again):
            await session.close()


async def session_on(pool: PoolExecutor, url: str) -> PoolSession:
    """A session that a certain node holds."""
    while True:
        session = await pool.session()
        await session.run("pass")
        await session.rollback()
        if session.node == url:
            return session
        await session.close()
