"""Environment classes of TRL's own documentation and examples, unmodified, as environments of ours.

Neither the wheel nor the sdist of TRL holds its documentation or examples: RSTAR2_TRL names a checkout of its
repository. What the package does ship is in `test_environment_trl_package.py`. A class of a page is written to a file
with the imports of its code block; an example is run as it is. `make test-clients` runs them in an environment that has
TRL.
"""

import ast
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from played_episodes import SERVICES, play, problem_of

from rstar2.config import EnvironmentSection
from rstar2.engine.scripted import ScriptedPrompt
from rstar2.environments import Environment, tool_call
from rstar2.environments.open import open_environment
from rstar2.records import Outcome, ToolStatus

TRL = Path(os.environ.get("RSTAR2_TRL") or "no-checkout-of-trl")
GRPO_PAGE = TRL / "docs" / "source" / "grpo_trainer.md"
GAME_2048 = TRL / "examples" / "scripts" / "grpo_2048.py"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed: make test-clients"),
    pytest.mark.skipif(
        not GRPO_PAGE.exists(), reason="RSTAR2_TRL names no checkout of TRL's repository: its packages hold no examples"
    ),
]


def class_of_page(name: str, folder: Path) -> str:
    """The first class of that name on the page, in a file of its own, as the source of an environment."""
    blocks = re.findall(r"^```python\n(.*?)^```$", GRPO_PAGE.read_text(encoding="utf-8"), re.M | re.S)
    block = next(block for block in blocks if f"class {name}:" in block)
    nodes: list[ast.stmt] = ast.parse(block).body
    kept = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    kept += [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    path = folder / f"{name.lower()}.py"
    path.write_text("\n".join(ast.get_source_segment(block, node) or "" for node in kept), encoding="utf-8")
    return f"file:{path}:{name}"


@asynccontextmanager
async def opened(source: str, **fields: str) -> AsyncIterator[Environment]:
    section = EnvironmentSection.model_validate({"source": source, **fields})
    async with open_environment(section, SERVICES) as environment:
        yield environment


async def test_the_environment_of_the_documentation(tmp_path: Path) -> None:
    def increments(prompt: ScriptedPrompt) -> str:
        asked = re.search(r"Increment the counter by (\d)", prompt.text)
        assert asked is not None, "what reset() returns is the prompt"
        return tool_call("increment", step=int(asked[1])) if prompt.turn == 0 else "Done."

    async with opened(class_of_page("IncrementEnv", tmp_path)) as environment:
        (tool,) = environment.opening(problem_of({})).tools
        right = await play(environment, problem_of({}), increments)
        wrong = await play(environment, problem_of({}), lambda _: "Done.")
    assert tool.parameters["properties"]["step"] == {"type": "integer", "description": "Value to add to the counter."}
    assert right.trace.outcome is Outcome.ANSWERED
    assert [played.judgement and played.judgement.score for played in (right, wrong)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "tool", "arguments"),
    [("CodingEnv", "run_code", {"code": "print(1)"}), ("GameEnv", "move", {"action": "up"})],
)
async def test_environments_of_the_documentation_without_a_reward(
    name: str, tool: str, arguments: dict[str, str], tmp_path: Path
) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text("def reward_func(environments, **kwargs):\n    return [0.5 for _ in environments]\n")
    source = class_of_page(name, tmp_path)
    async with opened(source, reward=f"file:{reward}:reward_func") as environment:
        played = await play(environment, problem_of({}), lambda at: "" if at.turn else tool_call(tool, **arguments))
    assert [result.status for result in played.trace.results] == [ToolStatus.NO_OUTPUT], "its tools return nothing"
    assert played.judgement is not None and played.judgement.score == 0.5


async def test_the_example_2048_with_its_reward_function() -> None:
    moves = ["left", "down", "left", "down", "right", "sideways"]

    def moving(prompt: ScriptedPrompt) -> str:
        return tool_call("move", direction=moves[prompt.turn]) if prompt.turn < len(moves) else "Done."

    row = {"prompt": [{"role": "user", "content": "Play 2048."}]}
    fields = {"reward": f"file:{GAME_2048}:reward_score"}
    async with opened(f"file:{GAME_2048}:Game2048Env", **fields) as environment:
        played = await play(environment, problem_of(row), moving)
    assert played.trace.prompt_text.count("score=0.0") == 1, "what reset() returns is appended to the prompt"
    results = played.trace.results
    assert [result.status for result in results] == [ToolStatus.OK] * len(moves)
    final = re.match(r"score=([\d.]+)", results[-1].text)
    assert final is not None and played.judgement is not None
    assert played.judgement.score == float(final[1])
