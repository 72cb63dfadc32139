"""The part of Ray that this project uses: starting an actor at a place, calling it, and noticing its death.

Invariant: an error of ours that an actor's method raises is raised here unchanged; a dead actor, and any other failure
of Ray, is `ActorLost`.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rstar2.errors import InfrastructureError, UserError

MAX_CONCURRENT_CALLS = 10_000
"""The limit of concurrent calls to one actor: a long poll must never block another call."""


class ActorLost(InfrastructureError):  # noqa: N818
    """An actor is dead, or out of reach."""


class ActorFailed(InfrastructureError):  # noqa: N818
    """An actor's method raised an unexpected error."""


def start_in_bundle(
    kind: type, arguments: tuple[Any, ...], group: PlacementGroup, bundle: int, *, num_gpus: float, is_concurrent: bool
) -> Any:
    """Starts an actor in one bundle of a placement group."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return _start(kind, arguments, strategy, num_gpus=num_gpus, is_concurrent=is_concurrent)


def start_on_node(kind: type, arguments: tuple[Any, ...], node_id: str) -> Any:
    """Starts an actor on one machine, without reserving resources there."""
    return _start(kind, arguments, NodeAffinitySchedulingStrategy(node_id, soft=False), num_gpus=0, is_concurrent=True)


def _start(kind: type, arguments: tuple[Any, ...], strategy: Any, *, num_gpus: float, is_concurrent: bool) -> Any:
    options = {"num_cpus": 0, "num_gpus": num_gpus, "scheduling_strategy": strategy, "max_restarts": 0}
    if is_concurrent:
        options["max_concurrency"] = MAX_CONCURRENT_CALLS
    return ray.remote(kind).options(**options).remote(*arguments)


def settled(call: Any) -> "asyncio.Future[Any]":
    """The result of a call, as a future. Cancelling it does not cancel the call: when a cancelled call is answered, the
    thread of Ray's client (`ray://`) dies, and with it everything else that is awaited."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[Any] = loop.create_future()

    def settle(done: "Future[Any]") -> None:
        with suppress(RuntimeError):  # The loop is closed, so no task waits.
            loop.call_soon_threadsafe(_hand_over, done, waiter)

    call.future().add_done_callback(settle)
    return waiter


def _hand_over(done: "Future[Any]", waiter: "asyncio.Future[Any]") -> None:
    if waiter.done():
        return
    error = done.exception()
    if error is None:
        waiter.set_result(done.result())
    else:
        waiter.set_exception(error)


async def answer(call: Any) -> Any:
    """Awaits a call's result."""
    try:
        return await settled(call)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, UserError | InfrastructureError):
            raise cause from error
        raise ActorFailed(f"{type(cause).__name__}: {cause}") from error
    except RayError as error:
        raise ActorLost(str(error).splitlines()[0]) from error


async def ask_each(actors: Mapping[str, Any], method: str, *arguments: Any, deadline_s: float) -> dict[str, str]:
    """Calls a method of all actors at once. Returns the names of those that failed, and why."""
    failures: dict[str, str] = {}

    async def ask(name: str, actor: Any) -> None:
        try:
            await asyncio.wait_for(answer(getattr(actor, method).remote(*arguments)), deadline_s)
        except TimeoutError:
            failures[name] = f"no answer within {deadline_s:g} s"
        except InfrastructureError as error:
            failures[name] = str(error)

    await asyncio.gather(*(ask(name, actor) for name, actor in actors.items()))
    return failures


def machine_address() -> str:
    """The address of this machine, as the other machines of the cluster reach it."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def living_machines() -> list[str]:
    """The ids of the machines that Ray has now."""
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def resources() -> dict[str, float]:
    """The resources of the full cluster, free or not."""
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found


@dataclass(frozen=True, slots=True)
class Process:
    """The process of an actor, so that one that hangs can be killed."""

    machine: str
    pid: int

    @classmethod
    def of_this_actor(cls) -> Self:
        return cls(ray.get_runtime_context().get_node_id(), os.getpid())


def kill(actor: Any, process: Process | None = None) -> None:
    """Kills an actor. Idempotent. Ray only asks its process to exit, which a hanging one does not do: if `process` is
    given, a task on its machine kills it."""
    ray.kill(actor, no_restart=True)
    if process is not None and process.machine in living_machines():
        strategy = NodeAffinitySchedulingStrategy(process.machine, soft=False)
        _end_process.options(num_cpus=0, scheduling_strategy=strategy).remote(process.pid)


@ray.remote
def _end_process(pid: int) -> None:
    """Kill the process if it is still an actor of Ray: its pid may have been reused."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)
