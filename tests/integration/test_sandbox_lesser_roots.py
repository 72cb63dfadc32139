"""Root that is less than it seems: without the slots' uids in its user namespace, or without a capability.

Each runs in a process that gives up what it has, so these tests need root themselves.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.sandbox.isolation import guarantees

pytestmark = pytest.mark.integration

RUN = """
import asyncio
from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.execution import Limits
from rstar2.sandbox.executor import Request
from rstar2.sandbox.slots.slot_factory import SlotConfig
from rstar2.sandbox.local import LocalConfig, LocalExecutor

async def main():
    async with LocalExecutor(LocalConfig(SlotConfig(warm=False, allow_weak_isolation=True))) as executor:
        print((await executor.run(Request("import os; print(os.getuid())"))).stdout, end="")
        print((await executor.run(Request("while True: pass", limits=Limits(wall_s=0.3)))).status)

print(guarantees.detect().to_be_privileged)
asyncio.run(main())
"""
IN_A_SMALL_USER_NAMESPACE = """
import sys
from rstar2.sandbox.isolation import linux
linux.unshare(linux.CLONE_NEWUSER)
print("ready", flush=True)
sys.stdin.readline()
"""
WITHOUT_CAPABILITY = """
from rstar2.sandbox.isolation import linux
held = linux.effective_capabilities()
linux.keep_only_capabilities(frozenset(bit for bit in range(41) if held >> bit & 1) - {linux.%s})
"""
DEADLINE_S = 240.0


@pytest.fixture(autouse=True)
def _needs_root() -> None:
    if not guarantees.detect().is_privileged:
        pytest.skip("needs root to take rights from")


def test_a_user_namespace_that_lacks_the_slots_uids() -> None:
    command = [sys.executable, "-c", IN_A_SMALL_USER_NAMESPACE + RUN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text(f"0 {os.getuid()} 65536")
        said, _ = process.communicate("\n", timeout=DEADLINE_S)
    assert said.splitlines() == [
        "map the uids and gids 1073741824 to 2147418111 into this user namespace",
        "1000",
        "timeout",
    ]


@pytest.mark.parametrize("capability", ["CAP_KILL", "CAP_SYS_NICE"])
def test_root_without_a_capability(capability: str) -> None:
    command = [sys.executable, "-c", WITHOUT_CAPABILITY % capability + RUN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout.splitlines() == [f"give root {capability}", "1000", "timeout"], done.stderr
