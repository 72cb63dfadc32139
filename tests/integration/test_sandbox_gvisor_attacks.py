"""The whole attack suite in gVisor: `make test-gvisor` runs it where `runsc` is installed."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
from sandbox_attack_runner import ATTACKS
from sandbox_attacks import SECRET, AnyAttack, Attack, Duet

from rstar2.sandbox import Request
from rstar2.sandbox.gvisor.executor import GvisorExecutor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("runsc") is None, reason="there is no runsc on the PATH"),
]
SLOW_IN_GVISOR = {"read the machine's files", "inode bomb"}
"""They walk or fill a file system for longer than a test may take; both ran once, and ended at their limits."""


@pytest.mark.timeout(1500)
async def test_every_attack_leaves_the_machine_and_the_next_program_unharmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks' own expectations name errors of Linux. Here it counts that nothing of the machine is seen, that each
    attack ends by itself or at its limits, and that no harm is done."""
    monkeypatch.setenv("RSTAR2_ATTACK_SECRET", SECRET)
    before, wrong = _times_of_packages(), {}
    async with GvisorExecutor(num_slots=2) as executor:

        async def attack_from(names: list[str]) -> None:
            while names:
                name = names.pop()
                wrong[name] = await _harm_of(executor, ATTACKS[name])

        names = [name for name in ATTACKS if name not in SLOW_IN_GVISOR]
        await asyncio.gather(attack_from(names), attack_from(names))
    assert {name: harm for name, harm in wrong.items() if harm} == {}
    assert _times_of_packages() == before


async def _harm_of(executor: GvisorExecutor, attack: AnyAttack) -> list[str]:
    runs = []
    if isinstance(attack, Attack):
        for code, stdin in attack.before:
            await executor.run(Request(code, stdin, attack.limits))
        runs.append(await executor.run(Request(attack.code, attack.stdin, attack.limits)))
    elif isinstance(attack, Duet):
        first = asyncio.create_task(executor.run(Request(attack.first, limits=attack.limits)))
        await asyncio.sleep(0.5)
        runs += [await executor.run(Request(attack.second, limits=attack.limits)), await first]
    else:
        notebook = await executor.session()
        for cell in attack.cells:
            if cell.rollback:
                await notebook.rollback(min(cell.rollback, notebook.num_cells))
            target = await notebook.fork() if cell.in_fork else notebook
            runs.append(await target.run(cell.code, cell.stdin, cell.limits))
            if cell.in_fork:
                await target.close()
        await notebook.close()
    harm = [f"{run.status}: {run.message}" for run in runs if run.status.is_sandbox_fault]
    harm += ["a secret was printed" for run in runs if SECRET in run.stdout + run.stderr]
    after = await executor.run(Request("print(6 * 7)"))
    return harm if after.stdout == "42\n" else [*harm, f"afterwards: {after}"]


def _times_of_packages() -> list[float]:
    return [Path(folder).stat().st_mtime for folder in sys.path if Path(folder).is_dir()]
