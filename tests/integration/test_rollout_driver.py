"""The live driver on engines that are slow, small and mortal."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from rollout_leftovers import left_in_driver

from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import RunDirectory, RunView, SpanKind, StopReason
from rstar2.rollout.driver import Driver
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.recorder import StepRecorder
from rstar2.rollout.scheduler import EngineSpeed, Fact, RolloutSpec

pytestmark = pytest.mark.integration

SPEED = EngineSpeed(prefill_token_s=1e-6, step_s=1e-4, cached_token_s=1e-9)
PROMPT = (1, 2, 3)


class CountingEngine:
    """Continues n tokens with n, n + 1, …: any token that were lost or doubled would show."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.num_generated = 0
        self.dies_after = dies_after
        self.sessions: set[str] = set()
        self.cancelled: set[str] = set()

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        self.sessions.add(session)
        self.cancelled.discard(session)
        assert sampling == Sampling()
        for index in range(max_tokens):
            await asyncio.sleep(0)
            if self.dies_after is not None and self.num_generated >= self.dies_after:
                raise InfrastructureError("this engine is dead")
            if session in self.cancelled:
                self.cancelled.remove(session)
                yield Chunk((), (), stop_reason=StopReason.CANCELLED)
                return
            self.num_generated += 1
            stop = StopReason.END_OF_TURN if index == max_tokens - 1 else None
            yield Chunk((len(token_ids) + index,), (0.0,), stop_reason=stop)

    def load(self) -> EngineLoad:
        return EngineLoad(16, 400, 400, 0, 0, 0, 0, 0, 0, self.num_generated)

    async def cancel(self, session: str) -> None:
        if session in self.sessions:
            self.cancelled.add(session)

    async def release(self, session: str) -> None:
        self.sessions.discard(session)

    async def close(self) -> None:
        pass


async def two_turns(seat: PlacedRollout) -> list[int]:
    tokens = list(PROMPT)
    for num_tokens in (7, 5):
        async for chunk in seat.generate(tokens, Sampling(), num_tokens):
            tokens += chunk.token_ids
        if num_tokens == 7:
            seat.calls_tool()
            await asyncio.sleep(0.001)
            tokens += [-1, -1]
    return tokens


def specs(count: int) -> list[RolloutSpec]:
    return [RolloutSpec(f"r{number}", f"p{number // 8}", len(PROMPT), 64) for number in range(count)]


EXPECTED = [*PROMPT, *range(3, 10), -1, -1, *range(12, 17)]


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_2000_rollouts_on_two_engines_of_which_one_dies_lose_none(policy: str) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy))
    dying, living = CountingEngine(dies_after=6_000), CountingEngine()
    driver.add_engine("dying", dying, SPEED)
    driver.add_engine("living", living, SPEED)
    calls: Counter[str] = Counter()

    async def rollout(seat: PlacedRollout) -> list[int]:
        calls[seat.spec.rollout] += 1
        return await two_turns(seat)

    results = await asyncio.wait_for(driver.run(specs(2000), rollout), 240)
    assert all(result == EXPECTED for result in results)
    assert set(calls.values()) == {1} and len(calls) == 2000
    assert driver.recorder.counts.num_engines_lost == 1
    assert driver.recorder.counts.num_starts == 2000
    assert driver.recorder.counts.num_moves > 0
    assert dying.num_generated + living.num_generated == 2000 * 12, "what came out before the death was kept"
    assert not living.sessions, "every session was released"


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_an_engine_may_be_lost_the_moment_it_is_given_a_rollout_that_waited(policy: str) -> None:
    async def one_turn(seat: PlacedRollout) -> int:
        return len([chunk async for chunk in seat.generate(PROMPT, Sampling(), 4)])

    for num_ticks in range(24):
        driver: Driver[int] = Driver(make_policy(policy), max_concurrent=2)
        for name in ("first", "second"):
            driver.add_engine(name, CountingEngine(), SPEED)
        run = asyncio.create_task(driver.run(specs(6), one_turn))
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        driver.lose_engine("first")
        assert await asyncio.wait_for(run, 60) == [4] * 6, f"lost after {num_ticks} ticks"
        assert left_in_driver(driver) == []


async def test_an_engine_may_join_in_the_middle() -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"))
    first, second = CountingEngine(), CountingEngine()
    driver.add_engine("first", first, SPEED)

    async def rollout(seat: PlacedRollout) -> list[int]:
        tokens = await two_turns(seat)
        if driver.engine("second") is None:
            driver.add_engine("second", second, SPEED)
        return tokens

    results = await asyncio.wait_for(driver.run(specs(600), rollout), 240)
    assert all(result == EXPECTED for result in results)
    assert second.num_generated > 0


async def test_a_rollout_that_raises_harms_no_other() -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"))
    driver.add_engine("only", CountingEngine(), SPEED)

    async def rollout(seat: PlacedRollout) -> list[int]:
        if seat.spec.rollout == "r3":
            async for _ in seat.generate(PROMPT, Sampling(), 7):
                raise ValueError("in the middle of a turn")
        return await two_turns(seat)

    results = await asyncio.wait_for(driver.run(specs(100), rollout), 240)
    assert isinstance(results[3], ValueError)
    assert all(result == EXPECTED for number, result in enumerate(results) if number != 3)


async def test_losing_the_last_engine_ends_the_run_and_says_why() -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"))
    driver.add_engine("only", CountingEngine(dies_after=500), SPEED)
    results = await asyncio.wait_for(driver.run(specs(200), two_turns), 240)
    failed = [result for result in results if isinstance(result, InfrastructureError)]
    assert failed and "engine only was the last one" in str(failed[0])
    assert all(result == EXPECTED for result in results if not isinstance(result, BaseException))


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_rollouts_wait_for_the_engine_that_takes_the_place_of_the_last(policy: str) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy), engine_timeout_s=60)
    driver.add_engine("first", CountingEngine(dies_after=500), SPEED)
    second = CountingEngine()

    async def replace() -> None:
        while driver.engine("first") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        driver.add_engine("second", second, SPEED)

    replacing = asyncio.create_task(replace())
    results = await asyncio.wait_for(driver.run(specs(200), two_turns), 240)
    await replacing
    assert all(result == EXPECTED for result in results)
    assert second.num_generated == 200 * 12 - 500 and not second.sessions


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limit", [1, 5, 48, 1000])
async def test_no_more_are_in_flight_than_may_be_and_none_is_forgotten(policy: str, limit: int) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy), report_period_s=0.01, max_concurrent=limit)
    for name in ("first", "second"):
        driver.add_engine(name, CountingEngine(), SPEED)
    num_running = most = 0

    async def counted(seat: PlacedRollout) -> list[int]:
        nonlocal num_running, most
        num_running += 1
        most = max(most, num_running)
        try:
            return await two_turns(seat)
        finally:
            num_running -= 1

    for _ in range(2):
        results = await asyncio.wait_for(driver.run(specs(100), counted), 240)
        assert all(result == EXPECTED for result in results)
    assert min(limit, 40) <= most <= limit


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_a_run_that_is_cancelled_leaves_its_places_to_the_next(policy: str) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy), report_period_s=0.01)
    engine = CountingEngine()
    driver.add_engine("only", engine, SPEED, num_cache_tokens=2 * (len(PROMPT) + 64))
    has_begun = asyncio.Event()

    async def endless(seat: PlacedRollout) -> list[int]:
        async for _ in seat.generate(PROMPT, Sampling(), 60):
            has_begun.set()
            await asyncio.Event().wait()
        raise AssertionError("nobody lets it go on")

    running = asyncio.create_task(driver.run(specs(8), endless))
    await has_begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert left_in_driver(driver) == [] and not engine.sessions
    assert await asyncio.wait_for(driver.run(specs(8), two_turns), 240) == [EXPECTED] * 8


async def test_a_run_that_is_cancelled_before_it_began_leaves_nothing() -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"))
    driver.add_engine("only", CountingEngine(), SPEED)
    running = asyncio.create_task(driver.run(specs(8), two_turns))
    asyncio.get_running_loop().call_soon(running.cancel)  # between the start of the run and that of its rollouts
    with pytest.raises(asyncio.CancelledError):
        await running
    assert left_in_driver(driver) == []


@pytest.mark.parametrize("policy", ["kv-aware", "worst-case"])
async def test_what_no_engine_has_room_for_is_said_and_keeps_nobody_waiting(policy: str) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy), max_concurrent=2)
    driver.add_engine("only", CountingEngine(), SPEED)
    wanted = [*specs(4), RolloutSpec("large", "p", len(PROMPT), 1 << 20)]
    results = await asyncio.wait_for(driver.run(wanted, two_turns), 240)
    assert results[:3] == [EXPECTED] * 3
    assert isinstance(results[4], UserError) and "lower max_response_tokens" in str(results[4])
    assert left_in_driver(driver) == []
    assert await asyncio.wait_for(driver.run(specs(4), two_turns), 240) == [EXPECTED] * 4


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_who_tries_again_after_the_last_engine_was_lost_hears_it_again(policy: str) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy))
    driver.add_engine("only", CountingEngine(dies_after=50), SPEED)

    async def stubborn(seat: PlacedRollout) -> list[int]:
        try:
            return await two_turns(seat)
        except InfrastructureError:
            return await two_turns(seat)

    results = await asyncio.wait_for(driver.run(specs(20), stubborn), 240)
    assert any(isinstance(result, InfrastructureError) for result in results)
    driver.add_engine("another", CountingEngine(), SPEED)
    assert left_in_driver(driver) == []
    assert await asyncio.wait_for(driver.run(specs(20), two_turns), 240) == [EXPECTED] * 20


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("engine_timeout_s", [0.0, 0.2])
async def test_what_no_engine_that_is_left_has_room_for_fails_and_the_others_go_on(
    policy: str, engine_timeout_s: float
) -> None:
    driver: Driver[list[int]] = Driver(make_policy(policy), engine_timeout_s=engine_timeout_s)
    driver.add_engine("large", CountingEngine(dies_after=20), SPEED, num_cache_tokens=6400)
    driver.add_engine("small", CountingEngine(), SPEED, num_cache_tokens=640)
    large = [RolloutSpec(f"large{number}", "q", len(PROMPT), 1000) for number in range(3)]
    results = await asyncio.wait_for(driver.run([*large, *specs(40)], two_turns), 240)
    for result in results[:3]:
        # One that was done before its engine died, or that a policy placed where it does not fit, has its tokens.
        is_told = isinstance(result, InfrastructureError) and "may need 1003 tokens of cache" in str(result)
        assert is_told or result == EXPECTED, result
    assert all(result == EXPECTED for result in results[3:])
    assert not left_in_driver(driver)


async def test_patience_has_an_end() -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"), engine_timeout_s=0.05)
    driver.add_engine("only", CountingEngine(dies_after=500), SPEED)
    results = await asyncio.wait_for(driver.run(specs(200), two_turns), 240)
    assert any(isinstance(result, InfrastructureError) for result in results)
    with pytest.raises(InfrastructureError, match="no engine"):
        await driver.run(specs(1), two_turns)


async def test_a_step_is_recorded_and_found_again_in_the_run_directory(tmp_path: Path) -> None:
    driver: Driver[list[int]] = Driver(make_policy("kv-aware"), report_period_s=0.01)
    driver.add_engine("dying", CountingEngine(dies_after=3_000), SPEED)
    driver.add_engine("living", CountingEngine(), SPEED)
    await asyncio.wait_for(driver.run(specs(20), two_turns), 240)
    driver.begin_step(7)
    await asyncio.wait_for(driver.run(specs(600), two_turns), 240)
    record = driver.end_step()
    with RunDirectory.create(tmp_path / "run", verb="train", recipe_toml="") as run:
        run.write_step_record(record)
    assert list(RunView(tmp_path / "run").step_records(7)) == [record]
    assert RunView(tmp_path / "run").schedule_steps() == [7]

    assert (record.step, record.num_rollouts, record.num_starts, record.num_engines_lost) == (7, 600, 600, 1)
    assert record.num_moved_tokens > 0
    uses = {use.engine: use for use in record.engines}
    assert set(uses) == {"dying", "living"}
    assert uses["dying"].left_s < uses["living"].left_s == record.duration_s
    for use in uses.values():
        assert use.busy_s + use.idle_s == pytest.approx(use.left_s - use.joined_s)
        assert use.busy_s > 0 and use.mean_turns > 0
    assert 600 * 12 - 3_000 <= uses["living"].num_generated_tokens <= 600 * 12
    assert uses["living"].num_new_tokens > 0
    assert record.samples and all(sample.at_s <= record.duration_s for sample in record.samples)

    path = record.critical_path
    assert path[-1].end_s <= record.duration_s
    assert all(earlier.end_s == later.start_s for earlier, later in pairwise(path))
    assert {SpanKind.GENERATING, SpanKind.TOOL} <= {span.kind for span in path}
    assert all(bool(span.engine) == (span.kind in (SpanKind.FIRST_TOKEN, SpanKind.GENERATING)) for span in path)


async def test_a_seat_says_how_long_its_turn_waited_for_a_place() -> None:
    now_s, counting = 0.0, CountingEngine()

    class Host:
        """Of one engine; places are given by the test."""

        recorder = StepRecorder(0, 0.0, lambda: now_s)
        recorder.engine_joined("here", counting.load())

        def clock(self) -> float:
            return now_s

        def tell(self, fact: Fact) -> None: ...

        def engine(self, name: str) -> CountingEngine | None:
            return counting if name == "here" else None

        def lose_engine(self, name: str) -> None:
            raise AssertionError(name)

    seat = PlacedRollout(Host(), specs(1)[0])
    now_s = 2.0
    seat.place("here")
    await seat.placed()
    waits = []
    for num_tokens in (3, 8):
        turn = asyncio.ensure_future(_all_of(seat.generate(range(num_tokens), Sampling(), 2)))
        await asyncio.sleep(0)
        now_s += 3.0
        if num_tokens == 8:
            seat.place("here")
        await turn
        waits.append(seat.waited_s)
    assert waits == [0.0, 3.0], "the first turn begins in its place; the second, after a tool, waits for one"


async def _all_of(chunks: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in chunks]
