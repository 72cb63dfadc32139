"""An OpenEnv server as the environment: sessions, tools, rewards, and every way in which a server can fail."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openenv_server import OpenEnvServer, serving
from played_episodes import SERVICES, Played, play, problem_of, section

from rstar2.agent import AgentLimits
from rstar2.config import DataSet
from rstar2.data import load_problems
from rstar2.engine.scripted import ScriptedPrompt, replies
from rstar2.environments.openenv import OPENENV, OpenEnvEnvironment, open_openenv
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Outcome, ToolStatus

pytestmark = pytest.mark.integration

GAVE_UP = "I stop.</reason>"


def call(amount: int, name: str = "AddAction") -> str:
    content = json.dumps({"name": name, "arguments": {"amount": amount}})
    return f"I add.</reason><tool_call>{content}</tool_call>"


def calls(*amounts: int) -> str:
    return "I add.</reason>" + "".join(call(amount).removeprefix("I add.</reason>") for amount in amounts)


@pytest.fixture
def server() -> Iterator[OpenEnvServer]:
    with serving(OpenEnvServer()) as started:
        yield started


async def played(
    server: OpenEnvServer, row: dict[str, object], *texts: str, deadline_s: float = 20.0, **settings: object
) -> Played:
    settings_section = section(f"openenv:{server.url}", deadline_s=deadline_s, settings=settings)
    async with open_openenv(settings_section, SERVICES) as environment:
        return await play(environment, problem_of(row), replies(texts))


async def test_an_action_is_a_tool_and_the_reward_is_the_score(server: OpenEnvServer) -> None:
    game = await played(server, {"target": 5}, call(2), call(3), instructions="Play.")
    assert game.trace.outcome is Outcome.ANSWERED
    assert game.trace.note == "its call ended the episode"
    assert [result.text for result in game.trace.results] == ['{"total": 2}', '{"total": 5}']
    assert all(result.status is ToolStatus.OK for result in game.trace.results)
    assert "Play.\n\nReach 5." in game.trace.prompt_text
    assert "AddAction" in game.trace.prompt_text
    assert "metadata" not in game.trace.prompt_text
    assert "secret" not in game.trace.text
    assert game.judgement is not None
    assert (game.judgement.score, game.judgement.verdict) == (1.0, None)
    assert game.judgement.details == {"total_reward": 0.75, "steps": 2.0}


async def test_rewards_can_be_summed(server: OpenEnvServer) -> None:
    game = await played(server, {"target": 5}, call(2), call(3), reward="sum")
    assert game.judgement is not None
    assert game.judgement.score == 0.75


async def test_tools_that_the_server_lists() -> None:
    with serving(OpenEnvServer(lists_tools=True)) as server:
        game = await played(server, {"target": 5}, call(2, "add"), call(3, "add"))
    assert [(result.status, result.text) for result in game.trace.results] == [
        (ToolStatus.OK, "2"),
        (ToolStatus.OK, "5"),
    ]
    assert game.judgement is not None
    assert game.judgement.score == 1.0


async def test_a_row_and_a_seed_that_siblings_share_go_into_the_reset(server: OpenEnvServer) -> None:
    async with open_openenv(section(f"openenv:{server.url}"), SERVICES) as environment:
        for name in ("p1", "p1", "p2"):
            await play(environment, problem_of({"target": 1, "level": "easy"}, name), replies([call(1)]))
        await play(environment, problem_of({"target": 1, "seed": 9}), replies([call(1)]))
    first, sibling, other, own = server.resets
    assert first == sibling
    assert (first["target"], first["level"]) == (1, "easy")
    assert other["seed"] != first["seed"]
    assert own["seed"] == 9


async def test_calls_of_one_turn_run_in_order_and_end_with_the_episode(server: OpenEnvServer) -> None:
    game = await played(server, {"target": 5}, calls(2, 3, 4))
    texts = [result.text for result in game.trace.results]
    assert texts[:2] == ['{"total": 2}', '{"total": 5}']
    assert "is over" in texts[2]
    assert game.judgement is not None
    assert game.judgement.score == 1.0


async def test_a_model_that_gives_up_gets_its_last_reward_and_one_that_never_acts_nothing(
    server: OpenEnvServer,
) -> None:
    acted = await played(server, {"target": 5}, call(2), GAVE_UP)
    assert acted.judgement is not None
    assert acted.judgement.score == -0.25
    idle = await played(server, {"target": 5}, GAVE_UP)
    assert idle.judgement is not None
    assert (idle.judgement.score, idle.judgement.details["steps"]) == (0.0, 0.0)


async def test_an_action_that_the_server_refuses_is_the_models_mistake(server: OpenEnvServer) -> None:
    game = await played(server, {"target": 5}, call(0), call(5))
    refused, accepted = game.trace.results
    assert (refused.status, accepted.status) == (ToolStatus.BAD_ARGUMENTS, ToolStatus.OK)
    assert "amount: must not be 0" in refused.text


@pytest.mark.parametrize(
    ("mishap", "status"),
    [
        ("execution_error", ToolStatus.RAISED),
        ("invalid_args", ToolStatus.BAD_ARGUMENTS),
        ("tool_not_found", ToolStatus.UNKNOWN_TOOL),
        ("timeout", ToolStatus.TIMED_OUT),
        ("is_error", ToolStatus.RAISED),
    ],
)
async def test_errors_of_the_servers_tools_are_typed(mishap: str, status: ToolStatus) -> None:
    with serving(OpenEnvServer(lists_tools=True)) as server:
        game = await played(server, {"target": 5, "mishap": mishap}, call(2, "add"), GAVE_UP)
    (result,) = game.trace.results
    assert (result.status, result.text.startswith("it ")) == (status, True)
    assert game.trace.outcome is Outcome.ANSWERED


@pytest.mark.parametrize(
    ("mishap", "sentence"),
    [
        ("hang", "no answer within 0.5 s"),
        ("drop", "closed the connection"),
        ("no JSON", "sent no JSON"),
        ("a list", "no message of OpenEnv's"),
        ("a state", "no observation"),
        ("huge", "exceeds limit"),
        ("text as reward", "the reward is '1'"),
        ("endless reward", "not a finite number"),
        ("vast reward", "not a finite number"),
        ("text as done", "not true or false"),
        ("raises", "division by zero"),
        ("transport_error", "it was transport_error"),
    ],
)
async def test_a_server_that_fails_is_an_infrastructure_fault(
    server: OpenEnvServer, mishap: str, sentence: str
) -> None:
    deadline_s = 0.5 if mishap == "hang" else 20.0
    game = await played(server, {"target": 5, "mishap": mishap}, call(2), GAVE_UP, deadline_s=deadline_s)
    assert game.trace.outcome is Outcome.INFRASTRUCTURE_FAULT
    assert sentence in game.trace.note
    assert server.url in game.trace.note
    (result,) = game.trace.results
    assert (result.status, result.num_attempts) == (ToolStatus.INFRASTRUCTURE_FAULT, 1)


async def test_an_answer_that_comes_too_late_is_never_taken_for_the_next(server: OpenEnvServer) -> None:
    async with open_openenv(section(f"openenv:{server.url}", deadline_s=0.5), SERVICES) as environment:
        episode = await environment.begin(problem_of({"target": 5, "mishap": "hang"}))
        for sentence in ("no answer within 0.5 s", "the session is closed"):
            with pytest.raises(EnvironmentCodeError, match=sentence):
                await episode.tools[0].call({"amount": 2})
        await episode.close()


async def test_a_closed_episode_frees_its_place() -> None:
    with serving(OpenEnvServer(max_sessions=1)) as server:
        async with open_openenv(section(f"openenv:{server.url}"), SERVICES) as environment:
            for number in range(3):
                episode = await environment.begin(problem_of({"target": 1}, f"p{number}"))
                socket = episode.session._socket
                await episode.close()
                assert socket is not None
                assert socket.closed
    assert len(server.resets) == 3


async def test_an_episode_that_ends_without_a_reward_is_not_scored(server: OpenEnvServer) -> None:
    with pytest.raises(EnvironmentCodeError, match="without a reward"):
        await played(server, {"target": 5, "mishap": "no reward"}, call(2))


async def test_a_recipe_can_stop_at_a_fault(server: OpenEnvServer) -> None:
    stopping = section(f"openenv:{server.url}", on_error="stop")
    async with open_openenv(stopping, SERVICES) as environment:
        with pytest.raises(UserError, match="closed the connection"):
            await play(environment, problem_of({"target": 5, "mishap": "drop"}), replies([call(2)]))


async def test_a_reset_that_raises_is_a_fault(server: OpenEnvServer) -> None:
    with pytest.raises(EnvironmentCodeError, match="no such level"):
        await played(server, {"target": 5, "reset_raises": True}, call(2))


async def test_text_of_the_server_cannot_forge_a_turn(server: OpenEnvServer) -> None:
    game = await played(server, {"target": 5, "mishap": "forged turn"}, call(2), GAVE_UP)
    assert "< |im_end|>" in game.trace.turns[0].appended_text
    assert game.trace.turns[0].appended_text.count("<|im_start|>assistant") == 1


async def test_a_thousand_sessions_at_a_time(server: OpenEnvServer) -> None:
    num_sessions = 1000
    everyone = asyncio.Barrier(num_sessions)

    async def one(environment: OpenEnvEnvironment, number: int) -> float | None:
        problem = problem_of({"target": number % 7 + 2}, f"p{number}")
        episode = await environment.begin(problem)
        try:
            await everyone.wait()
            for amount in (1, number % 7 + 1):
                result = await episode.tools[0].call({"amount": amount})
                assert result.status is ToolStatus.OK
            assert episode.is_over
            return (await episode.score(None)).score  # type: ignore[arg-type]
        finally:
            await episode.close()

    async with open_openenv(section(f"openenv:{server.url}"), SERVICES) as environment:
        scores = await asyncio.gather(*(one(environment, number) for number in range(num_sessions)))
    assert scores == [1.0] * num_sessions
    assert server.most_open == num_sessions


async def test_a_server_with_one_session_says_what_to_change() -> None:
    with serving(OpenEnvServer(max_sessions=1)) as server:
        async with open_openenv(section(f"openenv:{server.url}", deadline_s=0.5), SERVICES) as environment:
            first = await environment.begin(problem_of({"target": 1}))
            with pytest.raises(UserError, match=r"1 at a time are allowed and in use.*max_concurrent_envs"):
                await environment.begin(problem_of({"target": 1}))
            await first.close()


async def test_a_full_server_is_asked_again_until_a_place_is_free() -> None:
    with serving(OpenEnvServer(max_sessions=2)) as server:
        async with open_openenv(section(f"openenv:{server.url}"), SERVICES) as environment:
            first, second = [await environment.begin(problem_of({"target": 1})) for _ in range(2)]
            waiting = asyncio.create_task(environment.begin(problem_of({"target": 1})))
            assert await asyncio.to_thread(server.refused.wait, 20)
            await first.close()
            third = await waiting
            result = await third.tools[0].call({"amount": 1})
            assert result.status is ToolStatus.OK
            await second.close()
            await third.close()


async def test_a_full_server_is_a_fault_that_says_what_to_change() -> None:
    with serving(OpenEnvServer(max_sessions=2)) as server:
        async with open_openenv(section(f"openenv:{server.url}", deadline_s=0.5), SERVICES) as environment:
            open_ones = [await environment.begin(problem_of({"target": 1})) for _ in range(2)]
            with pytest.raises(EnvironmentCodeError, match="2 at a time are allowed"):
                await environment.begin(problem_of({"target": 1}))
            for episode in open_ones:
                await episode.close()


@pytest.fixture
def server_process() -> Iterator[subprocess.Popen[str]]:
    program = Path(__file__).with_name("openenv_server.py")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


async def test_a_killed_server_is_a_fault_of_every_open_episode(server_process: subprocess.Popen[str]) -> None:
    assert server_process.stdout is not None
    url = f"http://127.0.0.1:{int(server_process.stdout.readline())}"
    begun: set[str] = set()

    def policy(prompt: ScriptedPrompt) -> str:
        begun.add(prompt.session)
        if len(begun) == 20:
            server_process.kill()
            server_process.wait(10)
        return call(1)

    async with open_openenv(section(f"openenv:{url}"), SERVICES) as environment:
        problems = [problem_of({"target": 1_000_000}, f"p{number}") for number in range(20)]
        limits = AgentLimits(max_turns=10_000, max_response_tokens=10_000_000)
        games = await asyncio.gather(*(play(environment, problem, policy, limits=limits) for problem in problems))
        assert {game.trace.outcome for game in games} == {Outcome.INFRASTRUCTURE_FAULT}
        assert all(game.judgement is None for game in games)
        with pytest.raises(EnvironmentCodeError, match="Cannot connect"):
            await environment.begin(problem_of({"target": 1}))
    with pytest.raises(InfrastructureError, match="cannot be used"):
        async with open_openenv(section(f"openenv:{url}"), SERVICES):
            pass


def test_tasks_of_the_server_are_rows() -> None:
    tasks = [{"id": f"t{number}", "target": number} for number in range(2500)]
    with serving(OpenEnvServer(tasks=tasks)) as server:
        assert OPENENV.rows is not None
        rows = list(OPENENV.rows(section(f"openenv:{server.url}")))
        problems = load_problems("tasks", DataSet(source="environment"), 0, section(f"openenv:{server.url}"))
    assert (problems[7].id, problems[7].row["index"]) == ("t7", 7)
    assert rows[2400] == {"id": "t2400", "target": 2400, "split": "main", "index": 2400}
    assert len(rows) == 2500


def test_a_server_without_tasks_asks_for_a_data_set(server: OpenEnvServer) -> None:
    assert OPENENV.rows is not None
    with pytest.raises(UserError, match=r"lists no tasks.*name a data set in \[data\]"):
        list(OPENENV.rows(section(f"openenv:{server.url}")))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"observation": {}}, "shows no action"),
        ({"action": 5}, "no JSON schema"),
        ({"action": {"title": "Move", "type": "string"}}, "no object with fields"),
    ],
)
async def test_schemas_that_are_none_are_refused(schema: object, sentence: str) -> None:
    with serving(OpenEnvServer(schema=schema)) as server, pytest.raises(UserError, match=sentence):
        async with open_openenv(section(f"openenv:{server.url}"), SERVICES):
            pass


@pytest.mark.parametrize("source", ["openenv", "openenv:", "openenv:localhost:8000", "openenv:ftp://host"])
async def test_a_source_without_an_address_is_refused(source: str) -> None:
    with pytest.raises(UserError, match="openenv:http://HOST:PORT"):
        async with open_openenv(section(source), SERVICES):
            pass


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"spilt": "main"}, "environment.settings.spilt"), ({"reward": "mean"}, "environment.settings.reward")],
)
async def test_a_wrong_setting_is_named(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        async with open_openenv(section("openenv:http://127.0.0.1:9", settings=settings), SERVICES):
            pass
