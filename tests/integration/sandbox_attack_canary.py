"""What must be as ever after each attack: a program on every slot sees a new machine, a neighbour's session counts on,
and nothing is left running."""

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from sandbox_attacks import SECRET, S

from rstar2.sandbox import Execution, Limits, Request, Session
from rstar2.sandbox.local import LocalExecutor

LIMITS = Limits(wall_s=10)
PROGRAM = """
import builtins, os, random, resource, signal, stat, sys, threading
usage, facts = os.statvfs("."), os.stat(".")
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
print([
    sorted(os.listdir("/tmp")), os.getcwd(), oct(facts.st_mode), usage.f_bfree, usage.f_ffree,
    sorted(os.environ.items()),
    os.umask(0o022), [fd for fd in range(256) if is_open(fd)], os.getpriority(os.PRIO_PROCESS, 1), os.getppid(),
    [str(signal.getsignal(number)) for number in range(1, 65)], signal.pthread_sigmask(signal.SIG_BLOCK, []),
    [resource.getrlimit(kind) for kind in range(16)], threading.active_count(), sys.path, sys.argv,
    sorted(name for name, item in vars(builtins).items() if callable(item) and item.__module__ != "builtins"),
    sys.getrecursionlimit(), len(vars(builtins)), sorted(sys.modules),
    sorted(name for name in globals() if not name.startswith("__")),
])
draws = [random.random(), random.gauss(0, 1)]
if "numpy.random" in sys.modules:
    draws += [sys.modules["numpy.random"].random(), sys.modules["numpy.random"].randn()]
if "sympy.core.random" in sys.modules:
    draws += [sys.modules["sympy.core.random"].rng.random()]
print(draws)
int(input()) * 7
"""
NUM_SLOTS = 2


@dataclass
class Canary:
    """Of one executor with two slots, which an execution each at the same time must both reach."""

    executor: LocalExecutor
    facts: str = ""
    draws: set[float] = field(default_factory=set)
    neighbour: Session | None = None
    num_counted: int = 0
    num_lost: int = 0

    async def start(self) -> None:
        first = await self.executor.run(Request(PROGRAM, stdin="6", limits=LIMITS))
        self.facts = first.stdout.partition("\n")[0]
        if "/tmp" not in self.facts:
            raise AssertionError(f"the canary does not sing: {first}")
        await self._move_in()

    async def _move_in(self) -> None:
        """A neighbour with something to lose."""
        self.neighbour, self.num_counted = await self.executor.session(), 0
        code = f"count = 0\nsecret = '{SECRET}-session-0009'\nopen('loot', 'w').write(secret)\nNone"
        first = await self.neighbour.run(code)
        if not first.ok:
            raise AssertionError(f"the neighbour cannot move in: {first}")

    async def check(self, *, may_lose_slots: bool) -> list[str]:
        """Complaints, none if all is well."""
        runs = [self.executor.run(Request(PROGRAM, stdin="6", limits=LIMITS)) for _ in range(NUM_SLOTS)]
        complaints = [complaint for run in await asyncio.gather(*runs) for complaint in self._judge(run)]
        complaints += await self._ask_neighbour()
        complaints += self._look_at_processes()
        status = self.executor.status()
        if status["template_deaths"]:
            complaints.append("the template died")
        if not may_lose_slots and status["slots_lost"] > self.num_lost:
            complaints.append("a slot was lost")
        self.num_lost = status["slots_lost"]
        return complaints

    def _judge(self, run: Execution) -> list[str]:
        if run.status is not S.OK or run.value != "42" or run.num_attempts != 1:
            return [f"the next program ended with {run}"]
        facts, _, draws = run.stdout.partition("\n")
        complaints = [] if facts == self.facts else [f"the next program saw {_difference(self.facts, facts)}"]
        numbers = {float(word) for word in draws.strip("[]\n").split(",")}
        if numbers & self.draws:
            complaints.append(f"the same random numbers again: {numbers & self.draws}")
        self.draws |= numbers
        return complaints

    async def _ask_neighbour(self) -> list[str]:
        assert self.neighbour is not None
        self.num_counted += 1
        run = await self.neighbour.run("count += 1\n(count, secret == open('loot').read())")
        if run.value == f"({self.num_counted}, True)":
            if self.num_counted % 20 == 0:  # its tree of states stays small
                await self.neighbour.rollback(20)
                self.num_counted = 0
            return []
        await self._move_in()  # for the next attack, which is not to be blamed for this one
        return [f"the neighbour's session ended with {run}"]

    def _look_at_processes(self) -> list[str]:
        dispatcher = self.executor._dispatcher
        assert dispatcher is not None
        slots = {slot.pid for slot in dispatcher._slots if slot.pid}
        complaints = [f"left running in a slot: {line}" for line in _children_of(slots)]
        for pid in slots:
            try:
                if os.getpriority(os.PRIO_PROCESS, pid) != os.getpriority(os.PRIO_PROCESS, 0):
                    complaints.append(f"the slot's init {pid} has another priority")
            except ProcessLookupError:
                complaints.append(f"the slot's init {pid} is gone")
        return complaints


def _children_of(parents: set[int]) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        if int(text.rsplit(")", 1)[1].split()[1]) in parents:
            found.append(text[:40])
    return found


def _difference(expected: str, seen: str) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(expected, seen, strict=False)) if a != b), min(len(expected), len(seen))
    )
    return f"...{seen[max(0, at - 40) : at + 80]}... instead of ...{expected[max(0, at - 40) : at + 80]}..."
