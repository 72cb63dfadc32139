"""The sandbox holds against every attack in every mode, and the next programs are unharmed.

Each mode runs in a process of its own, once, with the attacks that were selected; the tests read its report.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from sandbox_attack_runner import ALL, ATTACKS
from sandbox_attack_scenarios import SCENARIOS
from sandbox_attacks import Mode

from rstar2.sandbox.isolation import guarantees
from rstar2.sandbox.slots import template_process

pytestmark = [pytest.mark.integration, pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")]
RUNNER = Path(__file__).parent / "sandbox_attack_runner.py"
MODE_DEADLINE_S = 1500


@cache
def report(mode: Mode, names: tuple[str, ...]) -> dict[str, str]:
    command = [sys.executable, str(RUNNER), mode.value]
    done = subprocess.run(command, input=json.dumps(names), capture_output=True, text=True, timeout=MODE_DEADLINE_S)
    if done.returncode:
        return {"": done.stderr[-4000:]}
    found: dict[str, str] = json.loads(done.stdout)
    return found


def why_impossible(mode: Mode) -> str | None:
    capabilities = guarantees.detect()
    if mode.is_root and not capabilities.is_privileged:
        return "needs root"
    if not mode.is_root and not capabilities.can_make_user_namespace:
        return "needs unprivileged user namespaces"
    if mode.is_fast and not template_process.is_fast_path_built():
        return "the fast path is not built"
    return None


@pytest.mark.timeout(MODE_DEADLINE_S + 30)
@pytest.mark.parametrize("name", [*ATTACKS, *SCENARIOS])
@pytest.mark.parametrize("mode", list(Mode))
def test_holds(mode: Mode, name: str, request: pytest.FixtureRequest) -> None:
    if reason := why_impossible(mode):
        pytest.skip(reason)
    selected = tuple(
        item.callspec.params["name"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_holds"
        and item.callspec.params["mode"] is mode
    )
    outcome = report(mode, selected)
    complaint = outcome.get(name, f"never ran: {outcome.get('', 'no reason given')}")
    if complaint:  # limits are seconds of a machine that ran all attacks: what holds alone was late, not broken
        complaint = report(mode, (name,)).get(name, "never ran") and complaint
    assert complaint == ""


def test_attacks_are_many_and_named_once() -> None:
    assert len(ALL) == len(ATTACKS) >= 80
