"""Foreign programs as episodes: with OpenAI's own client, as functions and as commands, and when they fail."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from train_recipes import write_recipe
from train_rollouts import CHAT

from rstar2.agent import AgentLimits
from rstar2.config import EnvironmentSection, load_recipe
from rstar2.engine import Sampling
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments import Services
from rstar2.environments.open import open_environment
from rstar2.errors import InfrastructureError, UserError
from rstar2.harness.door import Address
from rstar2.harness.programs import load_program
from rstar2.harness.settings import HarnessSettings
from rstar2.records import Outcome, Problem, Trace
from rstar2.records.codec import decode, encode
from rstar2.rollout import EngineSpeed, make_policy
from rstar2.rollout.driver import Driver
from rstar2.rollout.request import RolloutRequest
from rstar2.rollout.roller import Roller
from rstar2.sandbox import Executor

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

LIMITS = AgentLimits(max_turns=3, max_response_tokens=600, max_fault_retries=0)
PROGRAMS = '''
import asyncio, os, sys, json, threading
from openai import AsyncOpenAI, OpenAI, BadRequestError


def _client(base_url, api_key):
    return OpenAI(base_url=base_url, api_key=api_key, max_retries=0)


def talks(row, base_url, api_key, model):
    client, messages = _client(base_url, api_key), [{"role": "user", "content": row["prompt"]}]
    for again in ("And?", ""):
        choice = client.chat.completions.create(model="gpt-x", messages=messages, temperature=0).choices[0]
        messages += [{"role": "assistant", "content": choice.message.content}, {"role": "user", "content": again}]
    return choice.message.content


async def cuts(row, base_url, api_key):
    """A summary in place of the conversation, and a stream that stops early."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": row["prompt"]}]
        await client.chat.completions.create(model="m", messages=messages)
        messages = [{"role": "user", "content": "In short: " + row["prompt"]}]
        text = ""
        async for event in await client.chat.completions.create(model="m", messages=messages, stream=True, stop="STOP"):
            text += (event.choices[0].delta.content or "") if event.choices else ""
        return {"said": text}


def insists(row, base_url, api_key):
    while True:
        _client(base_url, api_key).chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])


def chooses(row, base_url, api_key):
    asked = [{"role": "user", "content": row["prompt"]}]
    answer = _client(base_url, api_key).chat.completions.create(model="m", messages=asked, n=4)
    return sorted(bool(choice.message.content) for choice in answer.choices)


async def asks_at_once(row, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        asked = [{"role": "user", "content": row["prompt"]}]
        asking = [client.chat.completions.create(model="m", messages=asked) for _ in range(4)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
    return sorted(each.code if isinstance(each, BadRequestError) else "answered" for each in answers)


def crashes(row, base_url, api_key):
    talks(row, base_url, api_key, "m")
    raise RuntimeError("no good")


def hangs(row, base_url, api_key):
    talks(row, base_url, api_key, "m")
    threading.Event().wait(60)


def silent(row):
    return "nothing"


def reward(row, trace):
    return {"right": float("fine" in trace.answer), "long": 0.25 * ("long" in trace.answer)}


if __name__ == "__main__":
    row = json.loads(sys.stdin.readline())
    if row["prompt"] == "fail":
        sys.exit("it failed")
    print(talks(row, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], os.environ["OPENAI_MODEL"]))
'''
Says = Callable[[ScriptedPrompt], str]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    file = tmp_path / "programs.py"
    file.write_text(PROGRAMS)
    return file


@asynccontextmanager
async def rolling(
    folder: Path, settings: dict[str, Any], says: Says, deadline_s: float = 30.0, success_threshold: float = 1.0
) -> AsyncIterator[Callable[[str], Any]]:
    section = EnvironmentSection(
        source="harness", reward=f"file:{folder}/programs.py:reward", settings=settings, deadline_s=deadline_s
    )
    services = Services(load_recipe(write_recipe(folder)), cast(Executor, None))
    driver: Driver[Trace] = Driver(make_policy("kv-aware"))
    engine = ScriptedEngine(says, CHAT.tokenizer, CHAT.end_of_turn_id)
    driver.add_engine("scripted", engine, EngineSpeed(1e-6, 1e-4, 1e-9), num_cache_tokens=1 << 20)
    async with open_environment(section, services) as environment:
        roller = Roller(driver, CHAT, {"": environment}, "scripted", success_threshold=success_threshold)

        async def roll(*prompts: str) -> list[Trace]:
            problems = [Problem(f"p{n}", "", "", row={"prompt": prompt}) for n, prompt in enumerate(prompts)]
            requests = [RolloutRequest(each, f"t-{each.id}", "g", seed=1) for each in problems]
            return await roller.run(requests, LIMITS, Sampling())

        yield roll


def fine(prompt: ScriptedPrompt) -> str:
    return f" hm</reason>fine {prompt.turn}"


async def test_a_function_with_openais_client_is_one_segment(programs: Path) -> None:
    async with rolling(programs.parent, {"agent": f"file:{programs}:talks"}, fine) as roll:
        traces = await roll(*(f"number {n}" for n in range(8)))
    for number, trace in enumerate(traces):
        assert (trace.outcome, trace.reward, trace.answer) == (Outcome.ANSWERED, 1.0, "fine 1")
        assert len(trace.turns) == 2 and trace.segments == (trace,)
        assert f"number {number}" in trace.prompt_text and "And?" in trace.turns[0].appended_text
        assert trace.turns[0].text == f" hm</reason>fine 0{CHAT.end_of_turn}", "the reasoning stays in the context"


async def test_a_conversation_that_was_cut_is_two_segments_and_ends_at_its_stop(programs: Path) -> None:
    def says(prompt: ScriptedPrompt) -> str:
        return "</reason>fine STOP and more and more and more" if "In short" in prompt.text else "</reason>long"

    async with rolling(programs.parent, {"agent": f"file:{programs}:cuts"}, says) as roll:
        traces = await roll("a", "b")
    for trace in traces:
        first, second = trace.segments
        assert (trace.answer, trace.reward) == ('{"said": "fine "}', 1.0)
        assert first.turn_texts == (f"</reason>long{CHAT.end_of_turn}",)
        assert second.turn_texts == ("</reason>fine STOP",), "what was sampled after the stop is not learnt from"
        assert "In short" in second.prompt_text and sum(map(len, (first.token_ids, second.token_ids)))


@pytest.mark.parametrize(("threshold", "succeeds"), [(1.0, False), (0.25, True)])
async def test_a_reward_that_reaches_the_threshold_is_a_success(
    programs: Path, threshold: float, succeeds: bool
) -> None:
    settings = {"agent": f"file:{programs}:talks"}
    async with rolling(programs.parent, settings, lambda _: "</reason>long", success_threshold=threshold) as roll:
        (trace,) = await roll("a")
    assert (trace.verdict, trace.reward, trace.is_right) == (None, 0.25, succeeds)
    assert decode(Trace, encode(trace)).is_right is succeeds, "whoever reads the stored trace sees the same"


async def test_a_command_gets_the_row_and_the_address(programs: Path) -> None:
    settings = {"command": [sys.executable, str(programs)], "max_at_once": 2}
    async with rolling(programs.parent, settings, fine) as roll:
        good, bad = await roll("a", "fail")
    assert (good.answer, good.reward, len(good.turns)) == ("fine 1\n", 1.0, 2)
    assert (bad.outcome, bad.reward) == (Outcome.INFRASTRUCTURE_FAULT, None)
    assert "ended with 1: it failed" in bad.note


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


ADDRESS = Address("http://127.0.0.1:9/v1", "key", "m")


@pytest.mark.parametrize("command", [("yes",), ("setsid", "--fork", "sleep", "60")], ids=["floods", "daemon"])
async def test_a_command_that_is_given_up_leaves_nothing(command: tuple[str, ...]) -> None:
    """Though its output is full, or a survivor in a session of its own holds it."""
    num_open = num_open_files()
    playing = asyncio.ensure_future(load_program(HarnessSettings(command=command))({}, ADDRESS))
    await asyncio.sleep(0.5)
    assert not playing.done()
    playing.cancel()
    await asyncio.wait({playing}, timeout=30)
    assert playing.cancelled() and num_open_files() == num_open


async def test_a_command_may_print_before_it_reads_its_row() -> None:
    program = "import sys; print('x' * 1_000_000); print(len(sys.stdin.read()))"
    row = {"text": "y" * 1_000_000}
    async with asyncio.timeout(60):
        result = await load_program(HarnessSettings(command=(sys.executable, "-c", program)))(row, ADDRESS)
    assert result.endswith(f"\n{len(json.dumps(row)) + 1}\n")


@pytest.mark.parametrize(("name", "note"), [("crashes", "no good"), ("hangs", "asked nothing for 2 s")])
async def test_a_program_that_fails_is_left_out_unless_the_recipe_says_otherwise(
    programs: Path, name: str, note: str
) -> None:
    agent = f"file:{programs}:{name}"
    async with rolling(programs.parent, {"agent": agent}, fine, 2.0) as roll:
        (trace,) = await roll("a")
    assert (trace.outcome, trace.reward) == (Outcome.INFRASTRUCTURE_FAULT, None) and note in trace.note
    async with rolling(programs.parent, {"agent": agent, "on_failure": "score"}, fine, 2.0) as roll:
        (trace,) = await roll("a")
    assert (trace.outcome, trace.reward, trace.answer) == (Outcome.ANSWERED, 0.0, "") and note in trace.note


async def test_a_program_that_goes_on_is_stopped_by_the_limit_of_turns(programs: Path) -> None:
    async with rolling(programs.parent, {"agent": f"file:{programs}:insists"}, fine) as roll:
        (trace,) = await roll("a")
    assert (trace.outcome, trace.reward, len(trace.turns)) == (Outcome.TURN_LIMIT, 0.0, LIMITS.max_turns + 1)
    assert len(trace.segments) == len(trace.turns), "it begins anew each time"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("chooses", [False, False, True, True]),
        ("asks_at_once", ["answered", "answered", "context_length_exceeded", "context_length_exceeded"]),
    ],
)
async def test_sequences_that_are_asked_for_together_share_the_token_budget(
    programs: Path, name: str, answer: list[Any]
) -> None:
    num_wanted = LIMITS.max_response_tokens * 2 // 3
    text = "</reason>" + CHAT.tokenizer.decode(CHAT.tokenizer.encode("fine and well " * num_wanted)[:num_wanted])
    async with rolling(programs.parent, {"agent": f"file:{programs}:{name}"}, lambda _: text) as roll:
        (trace,) = await roll("a")
    assert (json.loads(trace.answer), trace.outcome) == (answer, Outcome.ANSWERED), trace.note
    assert trace.num_sampled_tokens == LIMITS.max_response_tokens


async def test_a_program_that_asks_nothing_is_left_out(programs: Path) -> None:
    async with rolling(programs.parent, {"agent": f"file:{programs}:silent"}, fine) as roll:
        (trace,) = await roll("a")
    assert trace.outcome is Outcome.INFRASTRUCTURE_FAULT and "asked the model nothing" in trace.note


async def test_an_engine_that_fails_is_never_the_programs_fault(programs: Path) -> None:
    def says(_prompt: ScriptedPrompt) -> str:
        raise InfrastructureError("no engine")

    settings = {"agent": f"file:{programs}:talks", "on_failure": "score"}
    async with rolling(programs.parent, settings, says) as roll:
        (trace,) = await roll("a")
    assert (trace.outcome, trace.reward) == (Outcome.INFRASTRUCTURE_FAULT, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either agent"),
        ({"agent": "file:programs.py:talks", "command": ["x"]}, "either agent"),
        ({"agnt": "x"}, "settings.agnt"),
        ({"agent": "os:sep"}, "must be a function"),
    ],
)
async def test_wrong_settings_are_named(programs: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        async with rolling(programs.parent, settings, fine):
            pass
