"""Who gets in: what a hostile web page, a rogue node and a curious neighbour can do, and what our own clients need."""

import asyncio
import json
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from aiohttp import web
from sandbox_cluster import TOKEN, SandboxProcess, ask, gateway
from sandbox_service import EqualityGrader, GateExecutor, listening_socket, service, until
from typer.testing import CliRunner

from rstar2.cli.sandbox import app
from rstar2.cli.sandbox import run as run_module
from rstar2.errors import InfrastructureError, UserError
from rstar2.sandbox import Sandbox, client
from rstar2.sandbox.client import RemoteExecutor
from rstar2.sandbox.executor import Request
from rstar2.sandbox.http import ServiceSettings
from rstar2.sandbox.http.access import find_token, forget_token, keep_token
from rstar2.sandbox.http.compat_openenv import WS_PATH
from rstar2.sandbox.http.supervisor import listen
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.isolation.guarantees import Guarantee
from rstar2.sandbox.pool import PoolExecutor
from rstar2.sandbox.pool.gateway import Gateway, create_gateway

pytestmark = pytest.mark.integration
CAN_ISOLATE = not any(row.required and not row.provided for row in guarantees.probe())
isolated = pytest.mark.skipif(not CAN_ISOLATE, reason="this machine cannot isolate programs")
PROGRAM = json.dumps({"code": "pass"})
EVIL = "http://evil.example"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RSTAR2_SANDBOX_TOKEN", raising=False)
    return tmp_path / "state"


# ---- a web page ----

ATTACKS: dict[str, tuple[dict[str, str], int]] = {
    "a simple request, as no-cors lets any page send": ({"Content-Type": "text/plain"}, 415),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "a form with files": ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    "no type at all": ({"Content-Type": ""}, 415),
    "a type that only begins like JSON": ({"Content-Type": "application/json-seq"}, 415),
    "a simple request that says whose page it is": ({"Content-Type": "text/plain", "Origin": EVIL}, 403),
    "JSON from a page of another site": ({"Content-Type": "application/json", "Origin": EVIL}, 403),
    "JSON from a page without an origin": ({"Content-Type": "application/json", "Origin": "null"}, 403),
    "JSON from another port": ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:1"}, 403),
    "a name that was rebound to loopback": (
        {"Content-Type": "application/json", "Origin": EVIL, "Host": "evil.example"},
        403,
    ),
    "a rebound name, and no origin": ({"Content-Type": "application/json", "Host": "evil.example"}, 403),
    "the address that leads everywhere": ({"Content-Type": "application/json", "Host": "0.0.0.0"}, 403),
}
PATHS = (
    *("/v1/run", "/v1/run/stream", "/v1/batch", "/v1/sessions"),
    *("/run", "/judge", "/run/long-batch"),  # code-judge
    *("/run_code", "/run_jupyter"),  # SandboxFusion
    *("/execute", "/contexts"),  # E2B
)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_page_runs_nothing_even_where_no_token_is_asked(attack: str) -> None:
    headers, expected = ATTACKS[attack]
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        for path in PATHS:
            async with http.post(path, data=PROGRAM, headers=headers) as response:
                assert response.status == expected, await response.text()
                assert not [name for name in response.headers if name.startswith("Access-Control-")]
        assert executor.num_started == 0
        async with http.post("/v1/run", json={"code": "pass"}) as response:
            assert response.status == 200
        assert executor.num_started == 1


@pytest.mark.parametrize("headers", [{"Origin": EVIL}, {"Origin": "null"}, {"Host": "evil.example"}])
async def test_a_page_opens_no_websocket(headers: dict[str, str]) -> None:
    executor = GateExecutor()
    async with service(executor) as running, aiohttp.ClientSession(running.url) as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(WS_PATH, headers=headers)
        assert refused.value.status == 403
        async with http.ws_connect(WS_PATH) as socket:
            assert not socket.closed
        assert executor.num_started == 0


async def test_a_page_reads_nothing_and_is_promised_nothing() -> None:
    async with service(GateExecutor()) as running, aiohttp.ClientSession(running.url) as http:
        for path in ("/status", "/metrics", "/openapi.json", "/healthz", "/ping"):
            for headers in ({"Host": "evil.example"}, {"Origin": EVIL}):
                async with http.get(path, headers=headers) as response:
                    assert response.status == 403
        asks_first = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
        async with http.options("/v1/run", headers=asks_first) as response:
            assert response.status == 403
            assert not [name for name in response.headers if name.startswith("Access-Control-")]


async def test_an_empty_body_needs_no_type_and_lets_no_page_in() -> None:
    async with service(GateExecutor()) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/sessions") as response:
            assert response.status == 201
        async with http.post("/v1/sessions", headers={"Origin": EVIL}) as response:
            assert response.status == 403


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer s3cre", 401),
        ("Bearer s3cret!", 401),
        ("s3cret", 401),
        ("Basic !!!", 401),
        ("Basic czNjcmV0", 401),  # a user named s3cret
        ("Bearer s3cret", 200),
        ("Basic OnMzY3JldA==", 200),  # http://:s3cret@host
    ],
)
async def test_the_token(authorization: str | None, expected: int) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    executor = GateExecutor()
    settings = ServiceSettings(token="s3cret")
    async with service(executor, settings) as running, aiohttp.ClientSession(running.url) as http:
        async with http.post("/v1/run", json={"code": "pass"}, headers=headers) as response:
            assert response.status == expected
        # By whatever name a proxy or a cluster calls it; and never for a page, whatever that has found out.
        async with http.post("/v1/run", json={"code": "pass"}, headers={**headers, "Host": "gateway"}) as response:
            assert response.status == expected
        async with http.post("/v1/run", json={"code": "pass"}, headers={**headers, "Origin": EVIL}) as response:
            assert response.status == 403
    assert executor.num_started == (2 if expected == 200 else 0)


def test_no_service_has_a_token_that_everybody_has() -> None:
    for token in ("", " ", "a\nb", "schl\u00fcssel"):
        with pytest.raises(UserError, match="token"):
            ServiceSettings(token=token)


# ---- nodes ----


@asynccontextmanager
async def rogue(guarantees: list[dict[str, Any]]) -> AsyncIterator[tuple[str, list[str]]]:
    """A node that answers as it likes; its address, and what it was asked for."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/status":
            return web.json_response({"status": "ready", "num_cores": 64, "guarantees": guarantees})
        return web.json_response({"status": "ok", "stdout": "forged"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner, listener = web.AppRunner(app), listening_socket()
    await runner.setup()
    await web.SockSite(runner, listener).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        await runner.cleanup()


def full_table() -> list[Guarantee]:
    return [replace(row, provided=True) for row in guarantees.of_plain_subprocesses()]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json"},
        {"Content-Type": "application/json", "Authorization": "Bearer guessed"},
        {"Content-Type": "application/json", "Origin": EVIL, "Authorization": f"Bearer {TOKEN}"},
        {"Content-Type": "text/plain", "Authorization": f"Bearer {TOKEN}"},
    ],
)
async def test_nobody_joins_by_a_page_or_without_the_token_and_nobody_is_contacted(headers: dict[str, str]) -> None:
    async with rogue([asdict(row) for row in full_table()]) as (url, asked), gateway() as (address, pool):
        async with (
            aiohttp.ClientSession(address) as http,
            http.post("/nodes", data=json.dumps({"url": url}), headers=headers) as response,
        ):
            assert response.status in (401, 403, 415)
        # One that does join is asked; by then the other would have been, too.
        async with rogue([]) as (joined_url, joined_asked):
            Gateway(pool, TOKEN).join(joined_url)
            await until(lambda: len(joined_asked) > 2)
        assert asked == [] and [node.url for node in pool.nodes()] == [joined_url]


def test_a_gateway_without_a_token_is_none() -> None:
    async def make() -> None:
        async with PoolExecutor() as pool:
            create_gateway(pool, Gateway(pool, TOKEN), ServiceSettings(), EqualityGrader())

    with pytest.raises(UserError, match="token"):
        asyncio.run(make())


TABLES = {
    "says nothing": [],
    "isolates nothing": guarantees.of_plain_subprocesses(),
    "leaves a row out": full_table()[1:],
    "lacks one that is required": [replace(full_table()[0], provided=False), *full_table()[1:]],
    "says it holds what nobody asked for": [Guarantee("friendly", True, "by nature", "", True)],
}


@pytest.mark.parametrize("what", TABLES)
async def test_a_node_below_the_minimum_is_given_no_program(what: str) -> None:
    executor = GateExecutor()
    good = service(executor, ServiceSettings(token=TOKEN), guarantees=lambda: [asdict(row) for row in full_table()])
    weak = rogue([asdict(row) for row in TABLES[what]])
    async with (
        weak as (url, asked),
        good as node,
        gateway() as (address, pool),
        RemoteExecutor(address, TOKEN) as caller,
    ):
        for joining in (url, node.url):
            async with caller._connected().post(f"{address}/nodes", json={"url": joining}) as response:
                assert response.status == 200
        await until(
            lambda: {known.url: known.state for known in pool.nodes()} == {url: "lost", node.url: "ready"}, 30.0
        )
        [refused] = [known for known in pool.nodes() if known.url == url]
        assert "isolates less" in refused.message
        results = [result async for _, result in caller.run_many([Request("pass")] * 50)]
        assert executor.num_started == 50 and all(result.stdout == "pass" for result in results)
        notebook = await caller.session()
        await notebook.run("pass")
        assert set(asked) == {"/status"}
        async with caller._connected().get(f"{address}/status") as response:
            assert all(row["provided"] for row in (await response.json())["guarantees"])


async def test_the_status_of_a_gateway_shows_the_weakest() -> None:
    optional = [row for row in full_table() if not row.required]
    weaker = [replace(row, provided=row.required, fix="as root") for row in full_table()]
    silent = [row for row in full_table() if row.required]
    async with gateway() as (address, pool), RemoteExecutor(address, TOKEN) as caller:

        async def shown() -> dict[str, bool]:
            async with caller._connected().get(f"{address}/status") as response:
                return {row["name"]: row["provided"] for row in (await response.json())["guarantees"]}

        assert await shown() == {}
        for table, expected in ((full_table(), True), (weaker, False)):
            async with rogue([asdict(row) for row in table]) as (url, _):
                Gateway(pool, TOKEN).join(url)
                await until(lambda url=url: any(n.url == url and n.state == "ready" for n in pool.nodes()))  # type: ignore[misc]
                found = await shown()
                assert {found[row.name] for row in optional} == {expected}
                assert all(found[row.name] for row in silent)
    assert {row.name: row.provided for row in guarantees.weakest([full_table(), silent])} == {
        row.name: row.required for row in full_table()
    }


# ---- the token that is made ----


def descendants(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(below for child in children for below in descendants(child))]


def command_lines() -> bytes:
    """Of every process of the machine."""
    found = b""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found += (process / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
    return found


@pytest.fixture
def made() -> Iterator[SandboxProcess]:
    process = SandboxProcess("serve", "--workers", "2", token=None)
    assert process.url
    yield process
    process.end()


@isolated
def test_a_service_makes_a_token_that_our_clients_find_and_nobody_else_sees(
    made: SandboxProcess, state_home: Path
) -> None:
    [path] = (state_home / "rstar2" / "sandbox-tokens").iterdir()
    token = find_token(made.url)
    assert token is not None and path.read_text() == token and len(token) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sum(token in line for line in made.said) == 1

    assert ask(made.url, "/v1/run", {"code": "1"}, token=None)[0] == 401
    assert ask(made.url, "/v1/run", {"code": "1"}, token=token)[1]["value"] == "1"
    assert ask(made.url, "/healthz", token=None) == (200, {"status": "ready"})
    with Sandbox(made.url) as sandbox, Sandbox(made.url.replace("127.0.0.1", "localhost")) as by_name:
        assert sandbox.run("1 + 1").value == by_name.run("1 + 1").value == "2"
    command = [sys.executable, "-m", "rstar2", "sandbox", "run", "-", "--address", made.url]
    ended = subprocess.run(command, input="print(6 * 7)", capture_output=True, text=True, timeout=240)
    assert (ended.returncode, ended.stdout) == (0, "42\n"), ended.stderr

    everyone = descendants(made.process.pid)
    assert len(everyone) >= 5, "supervisor, two servers, a template, a slot"
    assert token.encode() not in command_lines()
    for pid in everyone:
        assert token.encode() not in Path(f"/proc/{pid}/environ").read_bytes()

    assert made.stop() == 0
    assert not path.exists() and find_token(made.url) is None


@isolated
def test_a_token_from_the_environment_goes_no_further() -> None:
    process = SandboxProcess("serve", "--workers", "2")
    try:
        assert ask(process.url, "/v1/run", {"code": "1"})[1]["value"] == "1"
        assert ask(process.url, "/v1/run", {"code": "1"}, token=None)[0] == 401
        assert TOKEN.encode() not in command_lines()
        _, *below = descendants(process.process.pid)
        assert len(below) >= 4, "two servers, a template, a slot"
        for pid in below:
            assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        process.end()


def test_an_unsafe_service_has_the_token_of_its_file_and_claims_nothing(tmp_path: Path, state_home: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    process = SandboxProcess("serve", "--unsafe", "--token-file", str(file), token=None)
    try:
        assert ask(process.url, "/status", token=None)[0] == 401
        for path in ("/v1/run", "/run_code", "/execute"):
            for headers, _ in ATTACKS.values():
                answer = requests.post(f"{process.url}{path}", PROGRAM, headers=headers, timeout=240)
                assert answer.status_code in (401, 403), (path, headers)
        table = ask(process.url, "/status")[1]["guarantees"]
        assert {row["name"] for row in table} == {row.name for row in guarantees.probe()}
        assert not any(row["provided"] for row in table)
        assert TOKEN.encode() not in command_lines()
        assert not any(TOKEN in line for line in process.said) and not state_home.exists()
    finally:
        process.end()


@isolated
def test_without_a_token_on_loopback_programs_get_in_and_pages_do_not() -> None:
    process = SandboxProcess("serve", "--workers", "2", "--no-token", token=None)
    try:
        assert ask(process.url, "/v1/run", {"code": "1"}, token=None)[1]["value"] == "1"
        simple = {"Content-Type": "text/plain"}
        assert requests.post(f"{process.url}/v1/run", PROGRAM, headers=simple, timeout=240).status_code == 415
        of_a_page = {"Content-Type": "application/json", "Host": "evil.example"}
        assert requests.post(f"{process.url}/v1/run", PROGRAM, headers=of_a_page, timeout=240).status_code == 403
    finally:
        process.end()


@isolated
def test_a_node_finds_the_token_of_a_gateway_of_this_machine() -> None:
    gateway = SandboxProcess("gateway", token=None)
    node = SandboxProcess("serve", "--workers", "2", "--join", gateway.url, token=None)
    try:
        assert node.url and ask(node.url, "/status", token=None)[0] == 401
        with Sandbox(gateway.url) as sandbox:
            assert sandbox.run("1 + 1").value == "2"
    finally:
        node.end()
        gateway.end()


def test_a_token_is_found_for_its_address_alone() -> None:
    keep_token("http://127.0.0.1:1234", "loopback")
    everywhere = keep_token("http://0.0.0.0:99", "everywhere")
    assert find_token("http://127.0.0.1:1234/") == find_token("http://localhost:1234") == "loopback"
    assert find_token("http://[::1]:99") == find_token("http://localhost:99") == "everywhere"
    for other in (
        "http://127.0.0.1:1235",
        "http://10.0.0.1:99",
        "http://evil.example:1234",
        "http://\0:1",
        "x",
        "http://a:b",
    ):
        assert find_token(other) is None
    forget_token(everywhere, "of an earlier service")
    assert everywhere.exists()
    keep_token("http://0.0.0.0:99", "later")
    assert find_token("http://localhost:99") == "later"
    forget_token(everywhere, "later")
    assert find_token("http://localhost:99") is None


# ---- mistakes on the command line ----


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "--no-token", "--host", "0.0.0.0"], "--host 0.0.0.0"),
        (["serve", "--no-token", "--unsafe"], "--no-token"),
        (["serve", "--no-token", "--allow-weak-isolation"], "--no-token"),
        (["serve", "--no-token", "--join", "http://127.0.0.1:1"], "--no-token"),
        (["serve", "--no-token", "--token-file", "TOKEN"], "--token-file"),
        (["serve", "--token-file", "EMPTY"], "is empty"),
        (["gateway", "--token-file", "NOWHERE"], "cannot be read"),
        (["serve", "--join", "http://127.0.0.1:1"], "--token-file"),
        (["serve", "--join", "http://127.0.0.1:1", "--unsafe"], "--unsafe"),
        (["gateway", "--no-token"], "--no-token"),
        (["serve", "--port", "99999"], "'--port'"),
        (["serve", "--port", "-1"], "'--port'"),
        (["gateway", "--port", "99999"], "'--port'"),
        (["run", "-", "--address", "http://127.0.0.1:99999"], "http://127.0.0.1:99999"),
    ],
)
def test_mistakes(arguments: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TOKEN").write_text("secret")
    (tmp_path / "EMPTY").write_text("\n")
    ended = CliRunner(env={"NO_COLOR": "1", "TERM": "dumb"}).invoke(app, arguments, input="")
    assert isinstance(ended.exception, UserError) or ended.exit_code == 2
    assert named in f"{ended.output}{ended.exception}"


def test_a_port_that_is_none_is_not_taken_for_another() -> None:
    with pytest.raises(UserError, match="99999"):
        listen("127.0.0.1", 99999)


def test_an_address_where_nobody_is_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "rstar2", "sandbox", "run", "-", "--address", address]
    # The deadline of a run is 160 s: what ends earlier did not wait for it.
    ended = subprocess.run(command, input="print(1)", capture_output=True, text=True, timeout=240)
    assert ended.returncode == 3 and address in ended.stderr and "waiting" not in ended.stderr
    with pytest.raises(InfrastructureError, match=address):
        Sandbox(address)


def test_a_slow_address_says_what_is_waited_for_and_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "REACH_S", 1.0)
    monkeypatch.setattr(sys.modules[run_module.__module__], "SAY_AFTER_S", 0.0)
    (tmp_path / "program.py").write_text("print(1)")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InfrastructureError, match=rf"{address} within 1 s"):
            run_module(str(tmp_path / "program.py"), address=address)
    assert f"waiting for the sandbox at {address}, for at most 161 s" in capsys.readouterr().err
