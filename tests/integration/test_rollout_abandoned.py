"""Rollouts that are cancelled anywhere, engines that are lost at any moment, under every policy: afterwards nothing of
them is left, neither with the scheduler nor with the driver, the engines or the sandbox, and the next run completes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import farm_rollers
import pytest
import torch
from farm_rollers import REPLIES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_leftovers import left_in_driver, left_in_embedded, left_in_sandbox, left_in_scripted, rollout_name
from sandbox_service import cold
from train_rollouts import CHAT
from transformers import AutoModelForCausalLM, LlamaConfig

from rstar2.agent import AgentLimits, JupyterTool
from rstar2.engine import Engine, Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments.plain_episode import PlainEnvironment
from rstar2.errors import InfrastructureError, UserError
from rstar2.grading import Grader
from rstar2.records import Outcome, Problem, Trace
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import answer_judge
from rstar2.rollout.placed_rollout import PlacedRollout
from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.roller import Roller
from rstar2.rollout.scheduler import EngineSpeed, RolloutSpec
from rstar2.sandbox import LocalExecutor

pytestmark = pytest.mark.integration

SPEED = EngineSpeed(prefill_token_s=1e-6, step_s=1e-4, cached_token_s=1e-9)
DEADLINE_S = 240.0
LIMITS = AgentLimits(max_turns=3, max_response_tokens=400, max_tool_output_tokens=64, max_fault_retries=1)


@dataclass(frozen=True)
class Event:
    num_ticks: int
    """Of the event loop, since the event before."""
    what: str


@dataclass(frozen=True)
class Round:
    """One run. If no event cancels it, it comes to its end, unless one of its rollouts has none."""

    rollouts: tuple[str, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Plan:
    policy: str
    num_engines: int
    num_places: int
    """How many of the longest rollouts an engine has room for."""
    max_concurrent: int | None
    engine_timeout_s: float
    rounds: tuple[Round, ...]


def plans(kinds: Sequence[str], max_ticks: int) -> st.SearchStrategy[Plan]:
    events = st.builds(Event, st.integers(0, max_ticks), st.sampled_from(("cancel", "kill", "kill", "join")))
    rounds = st.builds(
        Round,
        st.lists(st.sampled_from(kinds), min_size=1, max_size=8).map(tuple),
        st.lists(events, max_size=4).map(tuple),
    )
    return st.builds(
        Plan,
        policy=st.sampled_from(sorted(POLICIES)),
        num_engines=st.integers(1, 3),
        num_places=st.integers(1, 3),
        max_concurrent=st.none() | st.integers(1, 6),
        engine_timeout_s=st.sampled_from((0.0, DEADLINE_S)),
        rounds=st.lists(rounds, min_size=1, max_size=3).map(tuple),
    )


@dataclass
class Fleet:
    """The driver's engines, which die and are replaced."""

    driver: Driver[Any]
    num_cache_tokens: int
    make: Callable[[], Engine]
    kill: Callable[[Engine], Awaitable[None]]
    alive: dict[str, Engine] = field(default_factory=dict)
    _num_joined: int = 0

    def join(self) -> None:
        name = f"engine-{self._num_joined}"
        self._num_joined += 1
        self.alive[name] = self.make()
        self.driver.add_engine(name, self.alive[name], SPEED, self.num_cache_tokens)

    async def kill_one(self) -> None:
        if self.alive:
            name = next(iter(self.alive))
            await self.kill(self.alive.pop(name))
            self.driver.lose_engine(name)

    async def close(self) -> None:
        for engine in self.alive.values():
            await engine.close()


async def act_out(round_: Round, fleet: Fleet, run: Callable[[], Awaitable[Any]], *, can_end: bool) -> bool:
    """Whether the run came to its end without an error."""
    if not fleet.alive:
        fleet.join()
    running = asyncio.ensure_future(run())
    for event in round_.events:
        for _ in range(event.num_ticks):
            await asyncio.sleep(0)
        if event.what == "kill":
            await fleet.kill_one()
        elif event.what == "join":
            fleet.join()
        else:
            running.cancel()
            break
    if not fleet.alive and not running.done():
        fleet.join()
    if not can_end:
        running.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([running])
    if running.cancelled():
        return False
    # A run whose last engine is lost, with nobody to wait for, ends with that error; so does one that can never work.
    error = running.exception()
    assert error is None or isinstance(error, InfrastructureError | UserError), error
    return error is None


# Agents with notebooks, on scripted engines.


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples, because the sandbox lives in it."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def executor(runner: asyncio.Runner) -> Iterator[LocalExecutor]:
    executor = cold(num_young=4)
    runner.run(executor.start())
    yield executor
    runner.run(executor.close())


def reply(prompt: ScriptedPrompt) -> str:
    if "user\nfails" in prompt.text:
        raise UserError("this can never work")
    return farm_rollers.reply(prompt)


def requests(kinds: Sequence[str]) -> list[RolloutRequest]:
    """Each run uses the names of the one before again."""
    return [
        RolloutRequest(Problem(kind, kind, "42"), rollout_name(number), seed=number)
        for number, kind in enumerate(kinds)
    ]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(("answers", "calls", "calls", "sleeps", "fails"), max_ticks=150))
def test_nothing_is_left_of_agents_and_their_notebooks(
    plan: Plan, runner: asyncio.Runner, executor: LocalExecutor
) -> None:
    runner.run(expect_nothing_left_of_agents(plan, executor))


async def expect_nothing_left_of_agents(plan: Plan, executor: LocalExecutor) -> None:
    driver: Driver[Trace] = Driver(
        make_policy(plan.policy),
        report_period_s=0.01,
        engine_timeout_s=plan.engine_timeout_s,
        max_concurrent=plan.max_concurrent,
    )
    notebook = PlainEnvironment(answer_judge(Grader(executor)).decide, lambda: (JupyterTool(executor),))
    roller = Roller(driver, CHAT, {"": notebook})
    longest = max(await roller.num_prompt_tokens([request.problem for request in requests([*REPLIES, "fails"])]))
    num_cache_tokens = plan.num_places * (longest + LIMITS.max_response_tokens)

    async def leave_it_be(_engine: Engine) -> None:
        """As an engine behind a connection that broke, it may go on."""

    fleet = Fleet(
        driver, num_cache_tokens, lambda: ScriptedEngine(reply, CHAT.tokenizer, CHAT.end_of_turn_id), leave_it_be
    )
    for _ in range(plan.num_engines):
        fleet.join()
    seen: list[Trace] = []
    for round_ in (*plan.rounds, Round(("answers", "calls") * 3, ())):
        seen.clear()
        has_ended = await act_out(
            round_,
            fleet,
            lambda kinds=round_.rollouts: roller.run(requests(kinds), LIMITS, Sampling(), seen.append),
            can_end="sleeps" not in round_.rollouts,
        )
        num_seen = len(seen)
        assert left_in_driver(driver) == []
        for engine in fleet.alive.values():
            assert isinstance(engine, ScriptedEngine) and left_in_scripted(engine) == []
        assert await left_in_sandbox(executor) == []
        assert len(seen) == num_seen, "what was abandoned is not heard of any more"
        if has_ended and "fails" not in round_.rollouts:
            assert num_seen == len(round_.rollouts)
    assert [trace.outcome for trace in seen] == [Outcome.ANSWERED] * 6
    assert [trace.reward for trace in seen] == [1.0] * 6


# Turns of the embedded engine, which has blocks to lose, and can really die.

OPTIONS = EmbeddedOptions(kv_cache_tokens=256, max_running=4, max_prefill_tokens=32, steps_ahead=2)
PROMPT = tuple(range(10))
TURNS = (20, 12)
WORST_CASE = 64


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=256,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


async def converse(seat: PlacedRollout) -> int:
    tokens = list(PROMPT)
    for num_tokens in TURNS:
        async for chunk in seat.generate(tokens, Sampling(), num_tokens):
            tokens += chunk.token_ids
            if seat.spec.problem == "fails" and len(tokens) > len(PROMPT) + 5:
                raise ValueError("in the middle of a turn, which nobody closes")
        await asyncio.sleep(0)
    return len(tokens)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(("whole", "whole", "whole", "fails"), max_ticks=60))
def test_nothing_is_left_of_turns_on_embedded_engines(plan: Plan, runner: asyncio.Runner, model: Any) -> None:
    runner.run(expect_nothing_left_of_turns(plan, model))


async def expect_nothing_left_of_turns(plan: Plan, model: Any) -> None:
    driver: Driver[int] = Driver(
        make_policy(plan.policy),
        report_period_s=0.01,
        engine_timeout_s=plan.engine_timeout_s,
        max_concurrent=plan.max_concurrent,
    )
    fleet = Fleet(
        driver, plan.num_places * WORST_CASE, lambda: EmbeddedEngine.on_model(model, OPTIONS), lambda e: e.close()
    )
    for _ in range(plan.num_engines):
        fleet.join()
    async with closing(fleet):
        for round_ in (*plan.rounds, Round(("whole",) * 6, ())):
            results: list[int | BaseException] = []

            async def run(round_: Round = round_, results: list[int | BaseException] = results) -> None:
                specs = [
                    RolloutSpec(rollout_name(number), kind, len(PROMPT), WORST_CASE - len(PROMPT))
                    for number, kind in enumerate(round_.rollouts)
                ]
                results += await driver.run(specs, converse)

            has_ended = await act_out(round_, fleet, run, can_end=True)
            assert left_in_driver(driver) == []
            for engine in fleet.alive.values():
                assert isinstance(engine, EmbeddedEngine) and await left_in_embedded(engine) == []
            if has_ended:
                expect_as_drawn(round_, results)
        assert results == [len(PROMPT) + sum(TURNS)] * 6


def expect_as_drawn(round_: Round, results: Sequence[int | BaseException]) -> None:
    """Whole, unless the last engine was lost."""
    for kind, result in zip(round_.rollouts, results, strict=True):
        wanted = ValueError if kind == "fails" else int
        assert isinstance(result, wanted | InfrastructureError)


@asynccontextmanager
async def closing(fleet: Fleet) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await fleet.close()
