"""Engines and their weights over a run: who sleeps when, who joins when, and with which version. No Ray runs."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from rstar2.cluster import fleet as fleet_module
from rstar2.cluster.actors import Process
from rstar2.cluster.engine_actor import EnginePlan
from rstar2.cluster.fleet import MAX_FAILURES, EngineFleet
from rstar2.cluster.placement import place
from rstar2.config.cluster import ClusterSection
from rstar2.engine import Chunk, EngineLoad
from rstar2.engine.embedded import EmbeddedOptions
from rstar2.engine.remote.wire import encode_chunk
from rstar2.errors import InfrastructureError
from rstar2.rollout import EngineSpeed

pytestmark = [pytest.mark.unit, pytest.mark.timeout(300)]

LOAD = EngineLoad(16, 8, 8, 0, 0, 0, 0, 0, 0, 0)


@dataclass
class World:
    """What happens, in the order in which it does."""

    said: list[str] = field(default_factory=list)
    engines: list["FakeEngine"] = field(default_factory=list)

    def start(self, *_arguments: Any, **_options: Any) -> "FakeEngine":
        self.engines.append(FakeEngine(len(self.engines), self))
        return self.engines[-1]

    def kill(self, engine: "FakeEngine", _process: Process | None = None) -> None:
        engine.die()


@dataclass
class FakeEngine:
    """An `EngineActor` as its handle looks."""

    number: int
    world: World
    frames: list[Future[Any]] = field(default_factory=lambda: [Future()])
    num_asked: int = 0

    def die(self, error: Exception | None = None) -> None:
        if not self.frames[-1].done():
            self.frames[-1].set_exception(error or RayActorError())

    def send(self, *token_ids: int) -> None:
        """The next frame, with one chunk."""
        chunk = encode_chunk(Chunk(token_ids, (-1.0,) * len(token_ids)))
        self.frames[-1].set_result({"load": LOAD, "chunks": [(0, chunk)], "replies": []})
        self.frames.append(Future())

    def __getattr__(self, method: str) -> Any:
        def remote(*_arguments: Any) -> Any:
            if method == "next_frame":
                frame = self.frames[self.num_asked]
                self.num_asked += 1
                return type("Call", (), {"future": lambda _: frame})()
            if method != "act":
                self.world.said.append(f"{method} {self.number}")
            future: Future[Any] = Future()
            future.set_result((LOAD, Process("machine", 1)) if method == "start" else None)
            return type("Call", (), {"future": lambda _: future})()

        return type("Method", (), {"remote": staticmethod(remote)})()


@dataclass
class FakeCourier:
    """Satisfies `WeightSync`."""

    world: World
    failures: dict[str, str] = field(default_factory=dict)

    def weights_changed(self) -> None:
        self.world.said.append("changed")

    async def deliver(self, engines: Mapping[str, Any], version: int) -> dict[str, str]:
        self.world.said.append(f"deliver {version} to {','.join(engines)}")
        failures, self.failures = self.failures, {}
        return failures


class FakeDriver:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.given_up: list[str] = []

    def add_engine(self, name: str, _engine: Any, _speed: Any) -> None:
        self.names.add(name)

    def lose_engine(self, name: str) -> None:
        self.names.discard(name)

    def give_up(self, reason: str) -> None:
        self.given_up.append(reason)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(fleet_module, "start_in_bundle", world.start)
    monkeypatch.setattr(fleet_module, "kill", world.kill)
    monkeypatch.setattr(fleet_module, "REPLACE_PAUSE_S", 0.0)
    return world


async def make_fleet(
    world: World, driver: FakeDriver, courier: FakeCourier, num_engines: int, layout: str
) -> EngineFleet:
    section = {"num_nodes": 1, "gpus_per_node": 0, "layout": layout, "num_trainer_ranks": 1, "num_engines": num_engines}
    plan = EnginePlan(Path(), EmbeddedOptions(), "cpu", 1)
    group: Any = None
    any_driver: Any = driver
    fleet = EngineFleet(
        plan,
        group,
        place(ClusterSection.model_validate(section)),
        any_driver,
        courier,
        EngineSpeed(1.0, 1.0, 1.0),
        world.said.append,
        60.0,
        in_turns=layout == "colocated",
    )
    await fleet.start()
    world.said.clear()
    return fleet


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(240):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def settle() -> None:
    """Whatever wants to happen has time to."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def test_engines_that_share_their_gpus_sleep_until_the_weights_have_room(world: World) -> None:
    fleet = await make_fleet(world, FakeDriver(), FakeCourier(world), 1, "colocated")
    async with fleet.paused_for_weight_sync(3):
        world.said.append("learn")
    expected = ["sleep 0", "learn", "wake_for_weights 0", "changed", "deliver 3 to engine-0", "wake 0"]
    assert world.said == expected
    await fleet.close()


async def test_engines_of_their_own_gpus_never_sleep(world: World) -> None:
    fleet = await make_fleet(world, FakeDriver(), FakeCourier(world), 2, "separated")
    async with fleet.paused_for_weight_sync(1):
        pass
    assert world.said == ["changed", "deliver 1 to engine-0,engine-1"]
    await fleet.close()


async def test_an_engine_that_comes_while_ranks_learn_joins_with_what_they_learnt(world: World) -> None:
    driver = FakeDriver()
    fleet = await make_fleet(world, driver, FakeCourier(world), 2, "separated")
    async with fleet.paused_for_weight_sync(1):
        world.engines[0].die()
        await until(lambda: driver.names == {"engine-1"} and "start 2" in world.said)
        await settle()
        assert driver.names == {"engine-1"}
    await until(lambda: driver.names == {"engine-1", "engine-2"})
    deliveries = [said for said in world.said if said.startswith("deliver")]
    assert deliveries == ["deliver 1 to engine-1", "deliver 1 to engine-2"]
    await fleet.close()


async def test_no_engine_is_started_on_a_gpu_that_a_rank_has(world: World) -> None:
    driver = FakeDriver()
    fleet = await make_fleet(world, driver, FakeCourier(world), 1, "colocated")
    async with fleet.paused_for_weight_sync(1):
        world.engines[0].die()
        await settle()
        assert "start 1" not in world.said
    await until(lambda: driver.names == {"engine-1"} and world.said[-1].startswith("engine-1 joined"))
    assert "deliver 1 to engine-1" in world.said
    await fleet.close()


async def test_engines_of_a_failed_delivery_are_replaced_and_get_the_same_version(world: World) -> None:
    driver, courier = FakeDriver(), FakeCourier(world, {"engine-0": "torn", "engine-1": "torn"})
    fleet = await make_fleet(world, driver, courier, 2, "colocated")
    async with fleet.paused_for_weight_sync(4):
        pass
    assert driver.names == set()
    assert not [said for said in world.said if said.startswith("wake ")], "what was given up is asked no more"
    await until(lambda: driver.names == {"engine-2", "engine-3"})
    assert {"deliver 4 to engine-2", "deliver 4 to engine-3"} <= set(world.said)
    await fleet.close()


def out_of_memory() -> Exception:
    return RayTaskError("next_frame", "traceback", InfrastructureError("out of GPU memory"))  # type: ignore[no-untyped-call]


async def joined(driver: FakeDriver, number: int) -> None:
    await until(lambda: f"engine-{number}" in driver.names)


async def test_engines_that_all_fail_before_their_first_token_leave_their_place_empty(world: World) -> None:
    driver = FakeDriver()
    fleet = await make_fleet(world, driver, FakeCourier(world), 2, "separated")
    for number in (0, *range(2, MAX_FAILURES + 1)):
        await joined(driver, number)
        if number == 3:
            world.engines[number].send()  # a turn that was cancelled before its first token
        world.engines[number].die(out_of_memory())
    await until(
        lambda: any(said.endswith(f"empty: {MAX_FAILURES} engines in a row made no token") for said in world.said)
    )
    assert driver.names == {"engine-1"} and not driver.given_up, "the other place has an engine"
    assert any("engine-0 has failed (out of GPU memory)" in said for said in world.said)
    for number in (1, *range(MAX_FAILURES + 1, 2 * MAX_FAILURES)):
        await joined(driver, number)
        world.engines[number].die(out_of_memory())
    await until(lambda: bool(driver.given_up))
    (reason,) = driver.given_up
    assert "out of GPU memory" in reason
    await settle()
    assert len(world.engines) == 2 * MAX_FAILURES
    await fleet.close()


async def test_an_engine_that_made_tokens_is_replaced_however_many_failed_before_it(world: World) -> None:
    driver = FakeDriver()
    fleet = await make_fleet(world, driver, FakeCourier(world), 1, "separated")
    for number in range(2 * MAX_FAILURES):
        await joined(driver, number)
        if number % (MAX_FAILURES - 1) == 0:
            world.engines[number].send(7)
        world.engines[number].die()
    await until(lambda: driver.names == {f"engine-{2 * MAX_FAILURES}"})
    assert not driver.given_up
    await fleet.close()
