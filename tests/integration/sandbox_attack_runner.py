"""Runs attacks in one mode and prints what went wrong, as JSON: a process of its own, because one mode gives up root.

    python sandbox_attack_runner.py fast-root < names.json

Several executors share the work, each with two slots, so that an attack and the canary after it meet on known slots.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sandbox_attack_canary import Canary
from sandbox_attack_scenarios import SCENARIOS, Scenario
from sandbox_attacks import SECRET, AnyAttack, Attack, Cell, Duet, Expected, Mode, S, SessionAttack
from sandbox_attacks_branches import BRANCHES
from sandbox_attacks_files import FILES
from sandbox_attacks_leaks import LEAKS
from sandbox_attacks_processes import PROCESSES
from sandbox_attacks_resources import MEMORY, STREAMS
from sandbox_attacks_sessions import SESSIONS
from sandbox_attacks_shared import SHARED
from sandbox_attacks_syscalls import SYSCALLS

from rstar2.sandbox import Execution, Limits, Request, Session
from rstar2.sandbox.local import LocalConfig, LocalExecutor
from rstar2.sandbox.slots.slot_factory import SlotConfig

ALL: tuple[AnyAttack, ...] = (
    *(*SESSIONS, *BRANCHES, *PROCESSES, *MEMORY, *LEAKS, *STREAMS, *FILES, *SYSCALLS, *SHARED),
)
ATTACKS = {attack.name: attack for attack in ALL}
NUM_LANES = 3
UNPRIVILEGED_UID = 65534
LEEWAY_S = 60.0
"""Two cores run three lanes, so even what is stopped on time is seen late."""
PATIENT_S = 30.0
HANG_S = 240.0


def give_up_root() -> None:
    """Become an ordinary user, who sees the interpreter even if it lives in a home that only root may enter."""
    from rstar2.sandbox.isolation import linux

    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    for needed in {os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), str(Path(__file__).parent)}:
        closed = [folder for folder in reversed(Path(needed).parents) if folder.stat().st_mode & 0o005 != 0o005]
        if closed:
            kept = os.open(needed, os.O_PATH)
            linux.mount("tmpfs", str(closed[0]), "tmpfs", 0, "mode=755")
            Path(needed).mkdir(parents=True, exist_ok=True)
            linux.mount(f"/proc/self/fd/{kept}", needed, None, linux.MS_BIND | linux.MS_REC)
            os.close(kept)
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    os.setresuid(UNPRIVILEGED_UID, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    linux.prctl(linux.PR_SET_DUMPABLE, 1)  # a change of uid takes /proc/self away, which user namespaces are made with


def patient(expected: Expected, limits: Limits) -> Limits:
    """A wall-clock limit that is not meant to stop an attack does not do so on a busy machine either."""
    return limits if S.TIMEOUT in expected.status else replace(limits, wall_s=max(limits.wall_s, PATIENT_S))


def disagreements(run: Execution, expected: Expected, limits: Limits, num_starved: int = 0) -> list[str]:
    wrong = []
    if run.status not in expected.status:
        wrong.append(f"ended with {run.status}, not {' or '.join(expected.status)}")
    for name in ("stdout", "value", "exit_code", "signal"):
        wanted, seen = getattr(expected, name), getattr(run, name)
        if wanted is not None and seen != wanted:
            wrong.append(f"{name} is {seen if isinstance(seen, int | None) else seen[:300]!r}, not {wanted!r}")
    if expected.stdout_has not in run.stdout or expected.stderr_has not in run.stderr:
        wrong.append(f"lacks {(expected.stdout_has or expected.stderr_has)[:80]!r}")
    if expected.stdout is None and SECRET in run.stdout:
        wrong.append("a secret was printed")
    if expected.message_has not in run.message:
        wrong.append(f"its message lacks {expected.message_has!r}")
    if run.wall_s > limits.longest_s + LEEWAY_S:
        wrong.append(f"took {run.wall_s:.1f} s")
    if run.num_attempts > expected.max_attempts + num_starved:  # one that the other lanes starved is restarted, once
        wrong.append(f"was run {run.num_attempts} times")
    if wrong:
        wrong.append(f"[{run.message}] stdout {run.stdout[-200:]!r} stderr {run.stderr[-500:]!r}")
    return wrong


class Lane:
    """One executor, and the canary that lives in it."""

    def __init__(self, mode: Mode, *, warm: bool) -> None:
        slots = SlotConfig(fast=mode.is_fast, warm=warm)
        self._executor = LocalExecutor(LocalConfig(slots=slots, num_young=2, max_slots=2))
        self._canary = Canary(self._executor)

    async def work(self, names: list[str], report: dict[str, str]) -> None:
        async with self._executor:
            await self._canary.start()
            while names:
                name = names.pop()
                started = time.monotonic()
                try:
                    async with asyncio.timeout(HANG_S):
                        wrong = await self._hold(ATTACKS[name])
                except TimeoutError:
                    report[name] = f"hung for {HANG_S:g} s"
                    return
                report[name] = "\n".join(wrong)
                print(f"{time.monotonic() - started:6.2f} s  {name}", file=sys.stderr)

    async def _hold(self, attack: AnyAttack) -> list[str]:
        may_lose_slots = False
        if isinstance(attack, Attack):
            # A kill for memory may take the slot's init along; the host then makes a new one.
            may_lose_slots = S.MEMORY in attack.expected.status or bool(attack.before)
            wrong = await self._attack(attack)
        elif isinstance(attack, Duet):
            wrong = await self._duet(attack)
        else:
            wrong = await self._session(attack)
        return wrong + await self._canary.check(may_lose_slots=may_lose_slots)

    async def _attack(self, attack: Attack) -> list[str]:
        for code, stdin in attack.before:
            await self._executor.run(Request(code, stdin=stdin, limits=attack.limits))
        limits, num_starved = patient(attack.expected, attack.limits), self._num_starved()
        run = await self._executor.run(Request(attack.code, stdin=attack.stdin, limits=limits))
        return disagreements(run, attack.expected, limits, self._num_starved() - num_starved)

    def _num_starved(self) -> int:
        num_starved: int = self._executor.status()["executions_starved"]
        return num_starved

    async def _duet(self, duet: Duet) -> list[str]:
        num_before = self._num_starved()
        first = asyncio.create_task(self._executor.run(Request(duet.first, limits=duet.limits)))
        await asyncio.sleep(0.5)
        second = await self._executor.run(Request(duet.second, limits=duet.limits))
        result = await first
        num_starved = self._num_starved() - num_before
        return [
            *disagreements(result, duet.expected_first, duet.limits, num_starved),
            *disagreements(second, duet.expected_second, duet.limits, num_starved),
            *(["both printed the same"] if duet.first == duet.second and result.stdout == second.stdout else []),
        ]

    async def _session(self, attack: SessionAttack) -> list[str]:
        session = await self._executor.session()
        wrong: list[str] = []
        for number, cell in enumerate(attack.cells, start=1):
            wrong += [f"cell {number}: {one}" for one in await self._cell(session, cell)]
            if len(wrong) > 6:
                break
        after = await session.run("6 * 7")
        if after.value != "42":
            wrong.append(f"the session no longer counts: {after}")
        with suppress(ValueError):
            await session.close()
        return wrong

    async def _cell(self, session: Session, cell: Cell) -> list[str]:
        if cell.rollback:
            await session.rollback(cell.rollback)
        target = await session.fork() if cell.in_fork else session
        limits = patient(cell.expected, cell.limits)
        run = await target.run(cell.code, cell.stdin, limits=limits)
        if cell.in_fork:
            await target.close()
        return disagreements(run, cell.expected, limits)


async def hold_all(mode: Mode, names: list[str]) -> dict[str, str]:
    os.environ["RSTAR2_ATTACK_SECRET"] = f"{SECRET}-environment-0010"
    report: dict[str, str] = {}
    waiting = [name for name in reversed(ATTACKS) if name in names]
    lanes = [Lane(mode, warm=number == 0) for number in range(NUM_LANES)]
    outcomes = await asyncio.gather(*(lane.work(waiting, report) for lane in lanes), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            report.setdefault("", f"a lane ended with {outcome!r}")
    for name in set(names) & set(SCENARIOS):
        report[name] = await _play(SCENARIOS[name], mode)
    return report


async def _play(scenario: Scenario, mode: Mode) -> str:
    try:
        async with asyncio.timeout(HANG_S):
            return "\n".join(await scenario(mode))
    except TimeoutError:
        return f"hung for {HANG_S:g} s"


if __name__ == "__main__":
    chosen = Mode(sys.argv[1])
    if not chosen.is_root and os.geteuid() == 0:
        give_up_root()
    print(json.dumps(asyncio.run(hold_all(chosen, json.load(sys.stdin)))))
