"""What rollouts have left behind, by name: nothing may be, once their run is over, however it ended."""

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rstar2.engine.scripted import ScriptedEngine
from rstar2.rollout.driver import Driver
from rstar2.rollout.kv_need import NeedModel
from rstar2.rollout.scheduler import Scheduler
from rstar2.sandbox import LocalExecutor

if TYPE_CHECKING:  # workers have no PyTorch
    from rstar2.engine.embedded import EmbeddedEngine

COUNTERS = (
    *("num_inflight", "_num_unfinished", "num_waiting"),
    *("num_own_tokens", "num_own_tokens_at_most", "num_prompt_tokens"),
)
"""Of what schedulers hold: 0 when nothing runs."""
MEMORY = "_ended_at"
"""Where rollouts ended, for branches of them: of the newest ones, and of none that was abandoned."""


def left_in_driver(driver: Driver[Any]) -> list[str]:
    names = ("_handles", "_in_flight", "_unsubmitted", "_evicted", "_background")
    left = [f"driver.{name}: {held}" for name in names if (held := getattr(driver, name))]
    left += [f"recorder: {rollout}" for rollout in driver.recorder._rollouts]
    left += [f"recorder: turns at {name}" for name, use in driver.recorder._engines.items() if use.num_turns]
    return left + left_in_scheduler(driver._scheduler)


def left_in_scheduler(scheduler: Scheduler) -> list[str]:
    left = [f"scheduler{path}" for path in _mentions(scheduler, "", set())]
    unreserved, capacity = (getattr(scheduler, name, None) for name in ("_unreserved", "_capacity"))
    return left + ([f"scheduler._unreserved: {unreserved}"] if unreserved != capacity else [])


def _mentions(value: Any, path: str, seen: set[int]) -> Iterator[str]:
    """Where a rollout's name stands, or a counter that is not 0. What was learnt may stay."""
    if isinstance(value, NeedModel) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        if is_rollout(value):
            yield f"{path}: {value}"
        return
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield from _mentions(key, path, set())
            yield from _mentions(held, f"{path}[{key}]", seen)
        return
    if isinstance(value, list | tuple | set | deque):
        for held in value:
            yield from _mentions(held, path, set())
        return
    names = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "__dict__", ()))
    for name in names:
        if name == MEMORY:
            continue
        held = getattr(value, name)
        if name in COUNTERS and any(held.values() if isinstance(held, dict) else [held]):
            yield f"{path}.{name}: {held}"
        yield from _mentions(held, f"{path}.{name}", seen)


def rollout_name(number: int) -> str:
    return f"rollout-{number}"


def is_rollout(name: str) -> bool:
    return name.startswith("rollout-")


def left_in_scripted(engine: ScriptedEngine) -> list[str]:
    held: Collection[str] = engine._running | engine._cancelled | engine._prompt_lengths.keys()
    return [f"engine: {session}" for session in held]


async def left_in_embedded(engine: "EmbeddedEngine") -> list[str]:
    await engine.cancel("nobody")  # messages are acted on in order, so all that came before it are
    engine._blocks.check()
    load = engine.load()
    left = [f"engine: {session}" for session in engine._kept] + [f"engine: {turn}" for turn in engine._turns.values()]
    counts = (load.num_running, load.num_waiting, load.num_blocks - load.num_free_blocks)
    return left + ([f"engine: {load}"] if any(counts) else [])


async def left_in_sandbox(executor: LocalExecutor) -> list[str]:
    """A spare session that is being made counts for a moment."""
    names, give_up_s = ("queued", "running", "sessions", "sessions_live"), time.monotonic() + 120
    while True:
        left = [f"sandbox: {name} {count}" for name in names if (count := executor.status()[name])]
        if not left or time.monotonic() > give_up_s:
            return left
        await asyncio.sleep(0.01)
