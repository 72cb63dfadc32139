"""Servers of the real openenv package, played by a scripted model. `make test-environments` runs these."""

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from openenv_real_servers import PYTHON_ENV, serving
from played_episodes import SERVICES, play, problem_of, section

from rstar2.engine.scripted import replies
from rstar2.environments.openenv import OPENENV, open_openenv
from rstar2.records import Outcome, ToolStatus

pytestmark = [
    pytest.mark.environments,
    pytest.mark.skipif(PYTHON_ENV not in os.environ, reason="openenv is not here: `make test-environments` runs these"),
]


def call(tool: str, **arguments: Any) -> str:
    return f"So.</reason><tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("echo"), "echo") as url:
        yield url


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("tools"), "tools") as url:
        yield url


async def test_the_environment_that_openenv_ships(echo: str) -> None:
    async with open_openenv(section(f"openenv:{echo}"), SERVICES) as environment:
        texts = [call("EchoAction", message="hello"), call("EchoAction", text="?"), "Done.</reason>"]
        game = await play(environment, problem_of({"seed": 1}), replies(texts))
    said, refused = game.trace.results
    assert (said.status, json.loads(said.text)) == (ToolStatus.OK, {"echoed_message": "hello", "message_length": 5})
    assert refused.status is ToolStatus.BAD_ARGUMENTS
    assert "Echo Env environment ready!" in game.trace.prompt_text
    assert game.judgement is not None
    assert game.judgement.score == 0.5


async def test_its_sessions_are_apart(echo: str) -> None:
    async with open_openenv(section(f"openenv:{echo}"), SERVICES) as environment:

        async def one(number: int) -> float | None:
            texts = [call("EchoAction", message="x" * number), "Done.</reason>"]
            game = await play(environment, problem_of({}, f"p{number}"), replies(texts))
            return game.judgement.score if game.judgement else None

        scores = await asyncio.gather(*(one(number) for number in range(1, 41)))
    assert scores == [pytest.approx(min(number / 10, 1.0)) for number in range(1, 41)]


async def test_mcp_tools_and_tasks(tools: str) -> None:
    tasks = section(f"openenv:{tools}")
    assert OPENENV.rows is not None
    rows = list(OPENENV.rows(tasks))
    assert rows == [{"id": f"train-{index}", "split": "train", "index": index} for index in range(2)]
    texts = [call("length"), call("guess", word=""), call("guess", word="tea"), call("guess", word="oat", sure=None)]
    async with open_openenv(tasks, SERVICES) as environment:
        game = await play(environment, problem_of(rows[1]), replies(texts))
    assert [(result.status, result.text) for result in game.trace.results] == [
        (ToolStatus.OK, "3"),
        (ToolStatus.RAISED, "Error calling tool 'guess': say a word"),
        (ToolStatus.OK, "wrong"),
        (ToolStatus.OK, "right"),
    ]
    assert game.trace.outcome is Outcome.ANSWERED
    assert game.judgement is not None
    assert game.judgement.score == 1.0
