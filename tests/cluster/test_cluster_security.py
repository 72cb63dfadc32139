"""Who cannot talk to a cluster: other machines, other users of this one, and the model's own programs."""

import asyncio
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rstar2.cluster.actors import living_machines
from rstar2.cluster.sandboxes import SandboxCluster
from rstar2.sandbox import ExecutionStatus, Request
from rstar2.sandbox.pool import PoolExecutor

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
"""As the kernel writes 127.0.0.1, ::ffff:127.0.0.1 and ::1."""


def listening_ports() -> set[int]:
    """Ports of this machine that can be reached from others: those that listen on more than the loopback address."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            if state == "0A" and address not in LOOPBACK:
                found.add(int(port, 16))
    return found


def status_without_token(address: str) -> int:
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


async def test_nobody_without_the_token_is_let_in(address: str) -> None:
    before = listening_ports()
    reports: list[str] = []
    sandboxes = SandboxCluster(PoolExecutor(), num_slots=1, report=reports.append)
    try:
        await sandboxes.start()
        assert len(sandboxes.actors) == len(living_machines()) == 2
        assert listening_ports() <= before, "nothing listens where other machines could reach it"
        port = int(address.rpartition(":")[2])
        assert port not in before, "nor does Ray"
        # A program of the model's sees no network at all, whatever address it tries.
        for target in (port, *(int(node.url.rpartition(":")[2]) for node in sandboxes.pool.nodes())):
            code = f"import socket\nsocket.create_connection(('127.0.0.1', {target}), 2)"
            result = await sandboxes.pool.run(Request(code))
            assert result.status is ExecutionStatus.ERROR, result
            assert "OSError" in result.stderr or "PermissionError" in result.stderr, result.stderr
        for node in sandboxes.pool.nodes():
            assert await asyncio.to_thread(status_without_token, node.url) == 401
    finally:
        await sandboxes.close()


def test_ray_refuses_another_token(address: str) -> None:
    program = f"""
import ray, sys
try:
    ray.init(address={address!r}, logging_level="ERROR")
except BaseException as error:
    print(type(error).__name__, error)
    sys.exit(3)
"""
    environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
    asked = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert asked.returncode == 3 and "InvalidAuthToken" in asked.stdout + asked.stderr, asked
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 5):
        pass  # it is there; it only does not talk to strangers
