"""The tools of `environment.tools`, and a reward function in place of an environment's own."""

from pathlib import Path
from typing import Any

import pytest
from own_tasks import NO_SERVICES, call, opened, problem, section, trace

from rstar2.environments import Services, Task
from rstar2.environments.reward import RewardFunction, load_reward, with_reward
from rstar2.environments.tools import load_tool, open_tools, with_tools
from rstar2.environments.user_code import Caller, load_object
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Verdict

TOOLS_FILE = '''
from rstar2.agent import ToolSchema
from rstar2.records import ToolResult, ToolStatus

CLOSED = []

class Echo:
    schema = ToolSchema("echo", "Echoes.", {"type": "object", "properties": {}})

    def __init__(self, text="made"):
        self.text = text

    @classmethod
    def of(cls, recipe, executor):
        return cls(f"{recipe} {executor}")

    async def call(self, arguments):
        return ToolResult(ToolStatus.OK, self.text)

    async def close(self):
        CLOSED.append(self.text)

class Other:
    schema = ToolSchema("other", "Another.", {"type": "object", "properties": {}})

    async def call(self, arguments):
        return ToolResult(ToolStatus.OK, "other")

    async def close(self):
        CLOSED.append("other")

def make_tool():
    return Other()

def make_annotated() -> Other:
    return Other()

def search(words: str) -> list[str]:
    """Finds pages."""
    return words.split()

def stay() -> str:
    """Does nothing."""
    return "stayed"

class NoSchema:
    async def call(self, arguments): ...
    async def close(self): ...

class BadSchema(Other):
    schema = {"name": "x"}

class NotAsync(Other):
    def call(self, arguments): ...

class NoArguments(Other):
    async def call(self): ...

class Raises:
    def __init__(self):
        raise KeyError("x")

class LeavesOpen(Other):
    schema = ToolSchema("leaves", "Fails.", {"type": "object", "properties": {}})
    async def close(self):
        raise KeyError("x")

def undocumented(x: int): ...

VALUE = 3
'''


class Quiz(Task):
    num_closed = 0

    def get_reward(self) -> bool:
        return True

    def search(self, words: str) -> str:
        """Searches."""
        return words

    def close(self) -> None:
        type(self).num_closed += 1


class Silent(Quiz):
    search = None  # type: ignore[assignment]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "tools.py").write_text(TOOLS_FILE)
    return f"file:{tmp_path}/tools.py"


async def test_tools_of_every_kind_beside_the_environments_own(file: str) -> None:
    services = Services("recipe", "executor")  # type: ignore[arg-type]
    names = [f"{file}:Echo", f"{file}:make_tool", f"{file}:search", f"{file}:stay"]
    closed = load_object(f"{file}:CLOSED", "test")
    async with opened(Silent) as silent, open_tools(section(), names, services) as tools:
        assert closed == ["recipe executor", "other"], "what was made to read its schema is closed"
        environment = with_tools(silent, tools)
        schemas = environment.opening(problem({"prompt": "x"})).tools
        assert [schema.name for schema in schemas] == ["echo", "other", "search", "stay"]
        episode = await environment.begin(problem({"prompt": "x"}))
        assert [tool.schema for tool in episode.tools] == list(schemas)
        assert (await call(episode, "echo")).text == "recipe executor"
        assert (await call(episode, "search", words="a b")).text == '["a","b"]'
        assert (await call(episode, "stay")).text == "stayed"
        assert (await episode.score(trace())).verdict is Verdict.RIGHT
        assert not episode.is_over
        Silent.num_closed = 0
        await episode.close()
        assert Silent.num_closed == 1
        assert closed == ["recipe executor", "other"] * 2
        assert with_tools(silent) is silent


async def test_a_tool_of_the_table_and_one_made_by_a_class(file: str) -> None:
    name = "execute_python_code_with_standard_io"
    assert load_tool(name)
    for maker in ("make_annotated", "Other"):
        tool = load_tool(f"{file}:{maker}")(NO_SERVICES, Caller(1.0, stops=False))
        assert tool.schema.name == "other"


async def test_two_tools_of_the_same_name_are_refused(file: str) -> None:
    async with opened(Quiz) as quiz, open_tools(section(), [f"{file}:search"], NO_SERVICES) as tools:
        with pytest.raises(UserError, match="two tools have the same name: search, search"):
            with_tools(quiz, tools).opening(problem({"prompt": "x"}))


async def test_everything_is_closed_whatever_fails(file: str) -> None:
    class Fails:
        schemas = (load_tool(f"{file}:Other")(NO_SERVICES, Caller(1.0, stops=False)).schema,)

        async def make(self) -> Any:
            raise InfrastructureError("no server")

    closed = load_object(f"{file}:CLOSED", "test")
    async with opened(Silent) as silent, open_tools(section(), [f"{file}:Other"], NO_SERVICES) as tools:
        closed.clear()
        Silent.num_closed = 0
        with pytest.raises(InfrastructureError, match="no server"):
            await with_tools(silent, tools, Fails()).begin(problem({"prompt": "x"}))
        assert (Silent.num_closed, closed) == (1, ["other"])
        leaves = load_object(f"{file}:LeavesOpen", "test")()

        class Leaves(Fails):
            async def make(self) -> Any:
                return [leaves]

        episode = await with_tools(silent, Leaves(), tools).begin(problem({"prompt": "x"}))
        with pytest.raises(InfrastructureError, match="tool leaves could not be closed: KeyError"):
            await episode.close()
        assert (Silent.num_closed, closed) == (2, ["other", "other"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("VALUE", "is a int: name a function, a class, or a factory of tools"),
        ("NoSchema", "has no schema, so it is no tool"),
        ("BadSchema", "has a schema of type dict: make it a rstar2.agent.ToolSchema"),
        ("NotAsync", "has a call that is not async"),
        ("NoArguments", "cannot be asked to call"),
        ("Raises", r"tools.py, line \d+: KeyError: 'x'"),
        ("undocumented", r"tools.py, line \d+: tool undocumented has no docstring"),
        ("missing", "defines no missing"),
    ],
)
def test_what_is_no_tool_is_named(file: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=f"environment.tools: .*{message}"):
        load_tool(f"{file}:{name}")(NO_SERVICES, Caller(1.0, stops=False))


REWARD_FILE = """
def mine(row, trace):
    return {"right": float(row["answer"] == trace.turn_texts[-1]), "short": 0.5}

def of_trl(environments, **kwargs):
    return [environment.won for environment in environments]

async def of_texts(completions, answer):
    return [float(completion[-1]["content"] == gold) for completion, gold in zip(completions, answer)]

def not_one(completions, **kwargs):
    return [1.0, 2.0]

def nothing(row, trace):
    row.clear()

def other(one):
    return 1.0
"""


class Won:
    """A class of TRL's without a reward of its own."""

    won = 0.0

    def reset(self, **_row: Any) -> None:
        self.won = 0.0

    def win(self) -> str:
        """Wins."""
        self.won = 0.75
        return "won"


@pytest.mark.parametrize(
    ("name", "score"), [("mine", 1.5), ("of_trl", 0.75), ("of_texts", 1.0), ("not_one", None), ("nothing", None)]
)
async def test_a_reward_of_the_recipe(tmp_path: Path, name: str, score: float | None) -> None:
    (tmp_path / "rewards.py").write_text(REWARD_FILE)
    fields = section(reward=f"file:{tmp_path}/rewards.py:{name}")
    reward = load_reward(fields)
    async with opened(Won, reward=fields.reward) as won:
        environment = with_reward(won, reward)
        episode = await environment.begin(problem({"prompt": "Win.", "answer": "4"}))
        await call(episode, "win")
        if score is None:
            with pytest.raises(EnvironmentCodeError, match=r"not a list of one|rewards.py, line \d+: returned None"):
                await episode.score(trace("4"))
        else:
            assert (await episode.score(trace("4"))).score == score
        await episode.close()
        assert with_reward(won, None) is won


def test_what_is_no_reward_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARD_FILE)
    with pytest.raises(UserError, match=r"environment.reward: .*rewards.py, line \d+: it must be a function \(row, tr"):
        load_reward(section(reward=f"file:{tmp_path}/rewards.py:other"))
    assert load_reward(section()) is None
    with pytest.raises(UserError, match=r"environment\.reward: it must be"):
        RewardFunction.of(3, section())
