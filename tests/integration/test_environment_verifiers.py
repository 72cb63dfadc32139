"""Tasksets of the real verifiers package, played by a scripted model. `make test-environments` runs these.

Two of the tasksets are verifiers' own: games of TextArena, and a server of OpenEnv. The others are written for tests.
"""

import asyncio
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openenv_real_servers import PYTHON_ENV, serving
from played_episodes import SERVICES, Played, play, problem_of, section

from rstar2.agent import AgentLimits
from rstar2.config import EnvironmentSection
from rstar2.engine.scripted import replies
from rstar2.environments.verifiers import VERIFIERS, VerifiersEnvironment, open_verifiers
from rstar2.errors import EnvironmentCodeError, UserError
from rstar2.records import Outcome, StopReason, ToolStatus

if importlib.util.find_spec("verifiers") is None:
    pytest.skip("verifiers is not installed here: `make test-environments` runs these tests", allow_module_level=True)

pytestmark = pytest.mark.environments

in_loop_of_notes = pytest.mark.asyncio(loop_scope="module")
"""The fixture `notes` starts a tool server, once for all tests."""
TASKSETS = Path(__file__).with_name("verifiers_tasksets")


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """For this process and for tool servers, which are processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TASKSETS))
        patch.setenv("PYTHONPATH", str(TASKSETS))
        yield


def taskset(name: str, **settings: Any) -> EnvironmentSection:
    # Importing openenv, and starting a tool server, takes seconds; on a busy machine a minute.
    return section(f"verifiers:{name}", deadline_s=240.0, settings=settings)


def rows_of(name: str, **settings: Any) -> list[dict[str, Any]]:
    assert VERIFIERS.rows is not None
    return [dict(row) for row in VERIFIERS.rows(taskset(name, **settings))]


def call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


# Two tasksets that verifiers ships.


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The corpus of words that the games draw from: one word, so that the script knows it. nltk reads it once."""
    folder = tmp_path_factory.mktemp("nltk")
    corpus = folder / "corpora" / "words"
    corpus.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (corpus / name).write_text("tea\n")
    import nltk.data

    nltk.data.path[:] = [str(folder)]


@pytest.mark.usefixtures("words")
async def test_a_game_of_textarena() -> None:
    settings = {"game": "Hangman-v0", "select": {"limit": 2}}
    rows = rows_of("textarena", **settings)
    assert [row["name"] for row in rows] == ["Hangman-v0#0", "Hangman-v0#1"]
    async with open_verifiers(taskset("textarena", **settings), SERVICES) as environment:
        won = await play(environment, problem_of(rows[0]), replies([f"So.</reason>[{letter}]" for letter in "xtea"]))
        lost = await play(environment, problem_of(rows[1]), replies(["So.</reason>[x]"] * 3))
    assert won.trace.outcome is lost.trace.outcome is Outcome.ANSWERED
    assert "You are a competitive game player" in won.trace.prompt_text
    assert "T   _   _" in won.trace.turns[1].appended_text
    assert won.judgement is not None
    assert (won.judgement.score, won.judgement.details) == (1.0, {"game_reward": 1.0})
    assert lost.judgement is not None
    assert lost.judgement.score == 0.0


@pytest.mark.usefixtures("words")
async def test_a_game_that_is_cut_off_keeps_what_it_earned() -> None:
    settings = {"game": "Hangman-v0", "select": {"limit": 1}}
    (row,) = rows_of("textarena", **settings)
    async with open_verifiers(taskset("textarena", **settings), SERVICES) as environment:
        limits = AgentLimits(max_turns=8, max_response_tokens=120)
        game = await play(environment, problem_of(row), replies(["So.</reason>[t]", "x" * 500]), limits=limits)
    assert game.trace.outcome is Outcome.TRUNCATED
    assert game.judgement is not None
    assert game.judgement.score == 0.0


@pytest.mark.usefixtures("words")
async def test_a_taskset_without_end_needs_a_limit() -> None:
    with pytest.raises(UserError, match=r"settings\.select\.limit"):
        rows_of("textarena", game="Hangman-v0")


@pytest.mark.skipif(PYTHON_ENV not in os.environ, reason="openenv is not here")
async def test_a_server_of_openenv_as_a_taskset_of_verifiers(tmp_path: Path) -> None:
    with serving(tmp_path, "echo") as url:
        settings = {"base_url": url, "resets": [{"seed": 1}, {"seed": 2}]}
        rows = rows_of("openenv", **settings)
        assert [row["reset"] for row in rows] == [{"seed": 1}, {"seed": 2}]
        async with open_verifiers(taskset("openenv", **settings), SERVICES) as environment:
            texts = ['So.</reason>{"message": "hello"}', 'So.</reason>{"message": "hey"}', "Enough.</reason>"]
            game = await play(environment, problem_of(rows[1]), replies(texts))
    assert "Echo Env environment ready!" in game.trace.prompt_text
    assert '"echoed_message": "hello"' in game.trace.turns[0].appended_text
    assert game.trace.outcome is Outcome.ANSWERED
    assert game.judgement is not None
    assert game.judgement.score == pytest.approx(0.8)


# Conversations, tools, state and rewards.


@pytest.mark.parametrize(
    ("texts", "max_tokens", "heard", "num_turns"),
    [
        (("1", "2", "3"), 4000, ["1", "2", "3"], 3),
        (("1", "2 " * 500), 150, ["1", "2", None], 2),  # cut off in the second turn
        (("1", "2 " * 110), 150, ["1", "2", None], 2),  # no room for the third question
    ],
)
async def test_an_environment_that_speaks_for_the_user(
    texts: tuple[str, ...], max_tokens: int, heard: list[str | None], num_turns: int
) -> None:
    dialog = importlib.import_module("rstar2_dialog")
    dialog.HEARD.clear()
    limits = AgentLimits(max_turns=8, max_response_tokens=max_tokens)
    (row,) = rows_of("rstar2_dialog")
    async with open_verifiers(taskset("rstar2_dialog"), SERVICES) as environment:
        game = await play(environment, problem_of(row), replies([f"</reason>{text}" for text in texts]), limits=limits)
    assert [text and text[:1] for text in dialog.HEARD] == heard
    assert "user\nOne?<|im_end|>" in game.trace.prompt_text
    assert len(game.trace.turns) == num_turns
    assert (game.trace.turns[-1].stop_reason is StopReason.TOKEN_LIMIT) == (len(texts[-1]) == 1000)
    assert game.judgement is not None
    assert game.judgement.score == pytest.approx(num_turns / 3)
    (branch,) = dialog.SCORED[-1].branches
    assert tuple(branch.token_ids) == game.trace.token_ids
    assert [message.content[:4] for message in branch.messages if message.role == "user"] == [
        "One?", "Two?", "Three?"[:4],
    ][: num_turns]  # fmt: skip
    assert dialog.SCORED[-1].is_truncated == (max_tokens == 150)


async def test_a_thousand_episodes_at_a_time() -> None:
    async with open_verifiers(taskset("rstar2_dialog"), SERVICES) as environment:
        policy = replies([f"</reason>{number}" for number in range(3)])
        problems = [problem_of({}, f"p{number}") for number in range(1000)]
        games = await asyncio.gather(*(play(environment, problem, policy) for problem in problems))
    assert [game.judgement.score for game in games if game.judgement] == [1.0] * 1000


async def test_tools_state_and_rewards_of_a_taskset() -> None:
    rows = rows_of("rstar2_counting", num_tasks=2)
    assert rows[0] == {"idx": 0, "prompt": "What is 1 + 1?", "system_prompt": "Count.", "answer": 2}
    texts = [
        f"First.</reason>{call('count_add', a=1, b=1)}{call('count_add', a=-1, b=1)}",
        f"Then.</reason>{call('count_sub', a=1)}",
        "Now I know.</reason>\n2",
    ]
    async with open_verifiers(taskset("rstar2_counting"), SERVICES) as environment:
        game = await play(environment, problem_of(rows[0]), replies(texts))
    assert [result.status for result in game.trace.results] == [
        ToolStatus.OK,
        ToolStatus.RAISED,
        ToolStatus.UNKNOWN_TOOL,
    ]
    assert game.trace.results[0].text == "2"
    assert "a must not be negative" in game.trace.results[1].text
    assert game.judgement is not None
    # A call that raised changes no state.
    assert game.judgement.details == {"right": 0.75, "used_tool": 0.25, "calls": 1.0}
    assert (game.judgement.score, game.judgement.verdict) == (1.0, None)

    (seen,) = sys.modules["rstar2_counting"].SCORED
    assert seen.num_branches == 1
    branch = seen.branches[0]
    assert tuple(branch.token_ids) == game.trace.token_ids
    assert tuple(branch.sampled_mask) == game.trace.loss_mask
    assert tuple(branch.logprobs) == game.trace.log_probs
    assert [message.role for message in seen.messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    first, _, last = seen.assistant_messages
    assert (first.content, first.reasoning_content) == ("", "First.")
    assert [(made.name, json.loads(made.arguments)) for made in first.tool_calls] == [
        ("count_add", {"a": 1, "b": 1}),
        ("count_add", {"a": -1, "b": 1}),
    ]
    assert (last.content, last.reasoning_content) == ("2", "Now I know.")
    assert seen.num_output_tokens == game.trace.num_sampled_tokens
    assert [tool.name for tool in seen.tools] == ["count_add"]


async def test_a_stop_condition_of_the_task_ends_the_episode() -> None:
    (row, *_) = rows_of("rstar2_counting")
    twice = f"So.</reason>{call('count_add', a=1, b=1) * 2}"
    async with open_verifiers(taskset("rstar2_counting"), SERVICES) as environment:
        game = await play(environment, problem_of(row), replies([twice, twice]))
    assert (game.trace.outcome, len(game.trace.turns)) == (Outcome.ANSWERED, 2)
    assert game.judgement is not None
    assert game.judgement.score == 0.25


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def notes() -> AsyncIterator[VerifiersEnvironment]:
    async with open_verifiers(taskset("rstar2_notes"), SERVICES) as environment:
        yield environment


@in_loop_of_notes
async def test_episodes_that_share_a_tool_server_share_no_state(notes: VerifiersEnvironment) -> None:
    async def one(row: dict[str, Any]) -> Played:
        texts = [f"So.</reason>{call('notes_keep', text=row['word'])}", "Done.</reason>"]
        return await play(notes, problem_of(row), replies(texts))

    games = await asyncio.gather(*map(one, rows_of("rstar2_notes")))
    assert [game.trace.results[0].text for game in games] == list("abcdefgh")
    assert [game.judgement.score for game in games if game.judgement] == [1.0] * 8


# Faults.


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("setup raises", r"rstar2_notes\.py, line \d+: .*no such level"),
        ("setup hangs", "no answer within 2 s"),
        ("reward raises", r"rstar2_notes\.py, line \d+: .*by zero"),
        ("reward hangs", "no answer within 2 s"),
        ("reward is infinite", "not a finite number"),
    ],
)
@in_loop_of_notes
async def test_code_of_a_task_that_fails_is_a_fault(notes: VerifiersEnvironment, fault: str, sentence: str) -> None:
    problem = problem_of({"prompt": "Keep a.", "word": "a", "fault": fault})
    caller = replace(notes.caller, deadline_s=2.0) if "hangs" in fault else notes.caller
    with pytest.raises(EnvironmentCodeError, match=sentence):
        await play(replace(notes, caller=caller), problem, replies(["Done.</reason>"]))
    healthy = await play(notes, problem_of({"prompt": "Keep a.", "word": "b"}), replies(["Done.</reason>"]))
    assert healthy.judgement is not None
    assert healthy.judgement.score == 0.0


@in_loop_of_notes
async def test_a_lost_tool_server_is_a_fault(notes: VerifiersEnvironment) -> None:
    problem = problem_of({"prompt": "Keep a.", "word": "a"})
    episode = await notes.begin(problem)
    try:
        episode.seat.urls = {"notes": "http://127.0.0.1:9/mcp"}
        with pytest.raises(EnvironmentCodeError, match="verifiers:rstar2_notes: tool notes_keep"):
            await episode.tools[0].call({"text": "a"})
    finally:
        await episode.close()


@in_loop_of_notes
async def test_an_episode_that_is_closed_early_leaves_no_task(notes: VerifiersEnvironment) -> None:
    episode = await notes.begin(problem_of({"prompt": "Keep a.", "word": "a"}))
    await episode.close()
    assert episode.running.done()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "run_episode" in repr(task.get_coro())]


@in_loop_of_notes
async def test_a_row_that_is_no_task_is_named(notes: VerifiersEnvironment) -> None:
    with pytest.raises(UserError, match="problem p1: column word"):
        notes.opening(problem_of({"prompt": "Keep a.", "word": 5}))


@in_loop_of_notes
async def test_a_task_that_needs_a_container_is_refused(notes: VerifiersEnvironment) -> None:
    with pytest.raises(UserError, match="sets image, which needs a container"):
        notes.opening(problem_of({"prompt": "Keep a.", "image": "python:3.11"}))


HEAD = """
import verifiers.v1 as vf
class Data(vf.TaskData):
    pass
class Task(vf.Task[Data]):
    NEEDS_CONTAINER = {container}
    {hook}
    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        return 1.0
class Set(vf.Taskset[Task]):
    def load(self):
        return [Task(Data(prompt="?"), self.config.task)]
__all__ = ["Set"]
"""
INTERCEPT = """@vf.intercept
    async def rewrite(self, request: vf.Request) -> vf.Request | None:
        return None
"""
OWN_HARNESS = """
class Own(vf.Harness[vf.HarnessConfig]):
    async def launch(self, *_):
        pass
__all__.append("Own")
"""
TWO_AGENTS = """
class Config(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()
class Two(vf.Env[Config]):
    async def run(self, task, agents):
        pass
__all__.append("Two")
"""


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("needs_container", HEAD.format(container=True, hook=""), "needs a container"),
        ("intercepts", HEAD.format(container=False, hook=INTERCEPT), r"reads or rewrites model calls \(rewrite\)"),
        ("own_harness", HEAD.format(container=False, hook="") + OWN_HARNESS, "brings a harness of its own"),
        ("two_agents", HEAD.format(container=False, hook="") + TWO_AGENTS, r"has 2 agents \(solver, critic\)"),
        ("broken", "import verifiers.v1 as vf\n1 / 0\n", r"rstar2_case_broken\.py, line 2: ZeroDivisionError"),
        ("empty", "__all__ = []", "exports no Taskset"),
    ],
)
def test_what_cannot_be_played_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, sentence: str
) -> None:
    (tmp_path / f"rstar2_case_{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=sentence):
        rows_of(f"rstar2_case_{name}")


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("no_such_taskset", {}, "no_such_taskset"),
        ("", {}, "verifiers:NAME"),
        ("rstar2_counting", {"num_task": 3}, r"environment\.settings\.num_task"),
        ("rstar2_counting", {"num_tasks": "many"}, r"environment\.settings\.num_tasks"),
        ("rstar2_counting", {"select": {"limt": 3}}, r"environment\.settings\.limt"),
        ("nemo_gym", {"dataset": "x.jsonl"}, "x.jsonl"),
    ],
)
def test_a_mistake_in_the_recipe_is_named(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        rows_of(name, **settings)


async def test_tools_that_depend_on_the_task_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"responses_create_params": {"input": "hello"}}) + "\n")
    with pytest.raises(UserError, match="tools that differ from task to task"):
        async with open_verifiers(section("verifiers:nemo_gym", settings={"dataset": str(data)}), SERVICES):
            pass


def test_another_release_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.5.1")
    with pytest.raises(UserError, match=r"needs verifiers 0\.4, and 0\.5\.1 is installed"):
        rows_of("rstar2_counting")
