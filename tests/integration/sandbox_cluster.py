"""A gateway and its nodes as real processes, for tests that stop and kill them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sandbox_service import EqualityGrader, listening_socket

from rstar2.sandbox.http import Server, ServiceSettings
from rstar2.sandbox.pool import HealthConfig, PoolExecutor
from rstar2.sandbox.pool.gateway import Gateway, create_gateway

TOKEN = "a-token-of-the-tests"
START_DEADLINE_S = 240.0


class SandboxProcess:
    """`rstar2 sandbox VERB` on a free port of the loopback. Without a token it makes one of its own."""

    def __init__(self, verb: str, *arguments: str, token: str | None = TOKEN) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "RSTAR2_SANDBOX_TOKEN"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rstar2", "sandbox", verb, "--port", "0", *arguments],
            env=environment | ({"RSTAR2_SANDBOX_TOKEN": token} if token is not None else {}),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._url = ""
        self._has_url = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        """Waits until it serves."""
        self._has_url.wait(START_DEADLINE_S)
        assert self._url, f"it did not serve: {self.said}"
        return self._url

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("serving on "):
                self._url = line.split()[2]
                self._has_url.set()
        self._has_url.set()

    def pids(self) -> list[int]:
        """Its own and those of the servers below it."""
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.pids():
            os.kill(pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to drain; its exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def ask(
    url: str, path: str, body: object = None, *, method: str | None = None, token: str | None = TOKEN
) -> tuple[int, Any]:
    """The code and the body of an answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=240) as response:
            text, code = response.read().decode(), response.status
    except urllib.error.HTTPError as error:
        text, code = error.read().decode(), error.code
    return code, json.loads(text) if text.startswith(("{", "[")) and "\n" not in text else text


def node_states(gateway_url: str) -> dict[str, str]:
    return {node["url"]: node["state"] for node in ask(gateway_url, "/status")[1]["nodes"]}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"waited {timeout_s} s for: {what}"
        time.sleep(0.05)


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[str, PoolExecutor]]:
    """In the test's own loop: its address, and its pool."""
    async with PoolExecutor(health=HealthConfig(period_s=0.05)) as pool:
        app = create_gateway(pool, Gateway(pool, TOKEN), ServiceSettings(token=TOKEN), EqualityGrader())
        server, listener = Server(app), listening_socket()
        await server.start([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", pool
        finally:
            await server.drain(0.0)
