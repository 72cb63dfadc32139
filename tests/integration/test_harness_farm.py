"""Episodes of foreign programs in several rollout processes: what is recorded is what one process records."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from harness_rollers import open_harness_roller
from process_tree import until
from rollout_leftovers import rollout_name
from train_recipes import write_recipe

from model_server import tiny_model
from rstar2.agent import AgentLimits
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.engine.embedded.read_weights import read_weights
from rstar2.engine.process.host import serve_guest
from rstar2.records import Problem, Trace
from rstar2.rollout.farm import RollerFarm
from rstar2.rollout.request import RolloutRequest, RollsInSteps

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

PROGRAM = '''
import json
import os
import sys
import urllib.request


HELD_TOKENS = 77


def ask(base_url, api_key, text, max_tokens=12):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=200) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def agent(row, base_url, api_key, pid=None):
    """Asks in two conversations; the result names the process that rolls out."""
    if row["number"] < 0:
        return ask(base_url, api_key, "Talk.", HELD_TOKENS)
    said = [ask(base_url, api_key, text) for text in (f"Say {row['number']}.", f"Not {row['number']}.")]
    return {"said": said, "pid": pid or os.getpid()}


def reward(row, trace):
    return sum(trace.turns[0].token_ids) % 7 / 7


if __name__ == "__main__":
    address = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    print(json.dumps(agent(json.loads(sys.stdin.readline()), *address, pid=os.getppid())))
'''
SECTIONS = """
[environments.function]
source = "harness"
reward = "file:{file}:reward"
settings = {{ agent = "file:{file}:agent" }}

[environments.command]
source = "harness"
reward = "file:{file}:reward"
settings = {{ command = ["{python}", "{file}"] }}
"""
ENVIRONMENTS = ("function", "command")
LIMITS = AgentLimits(max_turns=2, max_response_tokens=80)
HELD_TOKENS = 77
DEADLINE_S = 240.0


@dataclass
class HoldingEngine:
    """A turn of so many tokens is never answered."""

    engine: EmbeddedEngine
    num_held: int = 0

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        if max_tokens == HELD_TOKENS:
            self.num_held += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.num_held -= 1
        async for chunk in self.engine.generate(session, token_ids, sampling, max_tokens):
            yield chunk

    async def cancel(self, session: str) -> None:
        await self.engine.cancel(session)

    async def release(self, session: str) -> None:
        await self.engine.release(session)

    def load(self) -> EngineLoad:
        return self.engine.load()

    async def close(self) -> None:
        await self.engine.close()


class Bench:
    """The engine is the test's own; the processes of a farm are its guests."""

    def __init__(self, folder: Path) -> None:
        file, self.recipe, self.model = folder / "program.py", folder / "recipe.toml", tiny_model(folder / "model")
        file.write_text(PROGRAM)
        text = write_recipe(folder).read_text()
        self.recipe.write_text(text + SECTIONS.format(file=file, python=sys.executable))
        weights = read_weights(self.model, torch.device("cpu"), torch.float32)
        assert weights is not None
        self.engine = HoldingEngine(EmbeddedEngine(weights, EmbeddedOptions(kv_cache_tokens=1 << 16)))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[RollsInSteps]:
        async def joined() -> HoldingEngine:
            return self.engine

        async with open_harness_roller(self.recipe, self.model, 1, joined()) as roller:
            yield roller

    @asynccontextmanager
    async def farm(self) -> AsyncIterator[RollsInSteps]:
        pairs = [socket.socketpair() for _ in range(2)]
        visits = [asyncio.create_task(serve_guest(self.engine, ours)) for ours, _ in pairs]
        try:
            make = partial(open_harness_roller, self.recipe, self.model, len(pairs))
            async with RollerFarm.opened(make, [theirs for _, theirs in pairs]) as farm:
                yield farm
        finally:
            for visit in visits:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)


def requests(numbers: range) -> list[RolloutRequest]:
    problems = [
        Problem(f"{name}{number}", "", "", row={"number": number}, environment=name)
        for name in ENVIRONMENTS
        for number in numbers
    ]
    return [RolloutRequest(each, rollout_name(place), seed=place) for place, each in enumerate(problems)]


async def test_two_processes_record_what_one_does_and_keep_nothing_of_what_was_cancelled(tmp_path: Path) -> None:
    bench, asked = Bench(tmp_path), requests(range(3))
    async with asyncio.timeout(DEADLINE_S), bench.alone() as roller:
        alone = await roller.run(asked, LIMITS, Sampling())
    async with asyncio.timeout(DEADLINE_S), bench.farm() as farm:
        await expect_nothing_left_of_the_cancelled(farm, bench.engine)
        several = await farm.run(asked, LIMITS, Sampling())
    assert [recorded(trace) for trace in several] == [recorded(trace) for trace in alone]
    assert all(len(trace.segments) == 2 and trace.reward is not None for trace in several), {t.note for t in several}
    pids = [{json.loads(trace.answer or "")["pid"] for trace in traces} for traces in (alone, several)]
    assert list(map(len, pids)) == [1, 2], "both processes had episodes"
    await bench.engine.close()


async def expect_nothing_left_of_the_cancelled(farm: RollsInSteps, engine: HoldingEngine) -> None:
    """Their programs wait for an answer that never comes."""
    running = asyncio.create_task(farm.run(requests(range(-2, 0)), LIMITS, Sampling()))
    await until(lambda: engine.num_held == 4)
    running.cancel()
    await asyncio.wait([running])
    farm.begin_step(1)
    await farm.end_step()
    await until(lambda: engine.num_held == 0)


def recorded(trace: Trace) -> tuple[object, ...]:
    said = json.loads(trace.answer or "{}").get("said")
    return trace.id, trace.outcome, trace.note, trace.token_ids, trace.loss_mask, trace.reward, said
