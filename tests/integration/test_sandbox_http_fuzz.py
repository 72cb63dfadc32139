"""No input, valid or not, HTTP or not, makes the service answer 500, hang, or stop serving."""

import gzip
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from sandbox_service import EqualityGrader, GateExecutor, Running, service_on_thread
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
    status_code_conformance,
)

from rstar2.sandbox import LocalExecutor
from rstar2.sandbox.http import create_app
from rstar2.sandbox.http.app import DOCUMENT

pytestmark = pytest.mark.integration
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with service_on_thread(make_executor=LocalExecutor, grader=EqualityGrader()) as found:
        yield found


schema = schemathesis.openapi.from_dict(create_app(GateExecutor(), grader=EqualityGrader())[DOCUMENT])


@schema.parametrize()
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_operation_as_documented(running: Running, case: schemathesis.Case[Any]) -> None:
    response = case.call(base_url=running.url, timeout=240)
    case.validate_response(response, checks=CHECKS)


def exchange(port: int, data: bytes, *, close_write: bool = True) -> bytes:
    """What comes back to these bytes, by the end of the connection or of our patience."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        received = b""
        try:
            sock.sendall(data)
            if close_write:
                sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                received += part
        except (ConnectionError, TimeoutError):
            pass
        return received


def assert_unharmed(running: Running) -> None:
    answer = requests.post(f"{running.url}/v1/run", json={"code": "print(1 + 1)"}, timeout=240)
    assert answer.status_code == 200 and answer.json()["stdout"] == "2\n"


HEAD = b"POST /v1/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%00%ff%zz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x00: \xff\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        HEAD + b"Content-Length: 10\r\nContent-Length: 11\r\n\r\n{}",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nnot a chunk\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x00\x00",
        HEAD + b"Content-Encoding: nonsense\r\nContent-Length: 2\r\n\r\n{}",
        HEAD.replace(b"application/json", b"\xff\xfe; charset=utf-7") + b"Content-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Type: \xff\xfe; charset=utf-7\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Content-Length: 400000\r\n\r\n" + b"[" * 400_000,
        HEAD + b'Content-Length: 400012\r\n\r\n{"limits": ' + b"[" * 400_000 + b"}",
        b"".join(HEAD.replace(b"close", b"keep-alive") + b"Content-Length: 1\r\n\r\n{" for _ in range(50)),
    ],
)
def test_bytes_that_are_not_a_request(running: Running, data: bytes) -> None:
    assert b" 500 " not in exchange(running.port, data)
    assert_unharmed(running)


def test_random_bytes(running: Running) -> None:
    rng = random.Random(7)
    valid = HEAD + b'Content-Length: 20\r\n\r\n{"code":"print(123)"}'
    for _ in range(100):
        if rng.random() < 0.5:
            data = rng.randbytes(rng.randrange(1, 2000))
        else:
            mutated = bytearray(valid)
            for _ in range(rng.randrange(1, 8)):
                mutated[rng.randrange(len(mutated))] = rng.randrange(256)
            data = bytes(mutated)
        assert b" 500 " not in exchange(running.port, data)
    assert_unharmed(running)


def test_a_compressed_bomb_is_refused(running: Running) -> None:
    bomb = gzip.compress(bytes(200 << 20), 9)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = requests.post(f"{running.url}/v1/run", data=bomb, headers=headers, timeout=240)
    assert response.status_code == 413
    assert_unharmed(running)


def test_connections_left_half_open(running: Running) -> None:
    held = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(200)]
    for index, sock in enumerate(held):
        sock.sendall((HEAD + b"Content-Length: 100\r\n\r\n{")[: 1 + index % 80])
    assert_unharmed(running)
    for sock in held:
        sock.close()
    assert_unharmed(running)
