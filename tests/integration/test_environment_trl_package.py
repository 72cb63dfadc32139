"""The environments that the package trl ships itself, unmodified: `trl.experimental.openreward`, with a server of the
package openreward. `make test-environments` runs these."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from openreward_server import serving
from played_episodes import SERVICES, play, problem_of

from rstar2.config import EnvironmentSection
from rstar2.engine.scripted import replies
from rstar2.environments import tool_call
from rstar2.environments.by_name import own_rows
from rstar2.environments.open import check_environment, open_environment
from rstar2.errors import EnvironmentCodeError
from rstar2.records import Outcome, ToolStatus

pytestmark = [
    pytest.mark.environments,
    pytest.mark.skipif(
        find_spec("trl") is None or find_spec("openreward") is None,
        reason="trl and openreward are not here: `make test-environments` runs these",
    ),
]

USERS_FILE = """
from trl.experimental.openreward import OpenRewardSpec

spec = OpenRewardSpec("{url}")
factory = spec.environment_factory
reward = spec.reward_funcs
"""


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvironmentSection]:
    """What a user writes: the two objects that TRL's page hands to the trainer."""
    path: Path = tmp_path_factory.mktemp("trl") / "sums.py"
    with serving() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        for name in ("OPENREWARD_API_URL", "OPENREWARD_SESSION_URL"):  # else it asks for api.127.0.0.1
            patch.setenv(name, url)
        path.write_text(USERS_FILE.format(url=url))
        yield EnvironmentSection(source=f"file:{path}:factory", reward=f"file:{path}:reward")


async def test_an_environment_of_the_package_is_played_and_scored(section: EnvironmentSection) -> None:
    check_environment(section)
    row = {"prompt": "", "task_index": 0}
    async with open_environment(section, SERVICES) as environment:
        (tool,) = environment.opening(problem_of(row)).tools
        assert tool.name == "answer" and "submit your final answer" in tool.description
        assert tool.parameters["properties"]["answer"]["type"] == "string"
        right = await play(environment, problem_of(row), replies([tool_call("answer", answer="4"), "Done."]))
        wrong = await play(environment, problem_of(row), replies([tool_call("answer", answer="5"), "Done."]))
    assert "What is 2+2?" in right.trace.prompt_text
    assert [result.text for result in right.trace.results] == ["Correct!"]
    assert right.trace.results[0].status is ToolStatus.OK
    assert right.trace.outcome is Outcome.ANSWERED
    assert [played.judgement and played.judgement.score for played in (right, wrong)] == [1.0, 0.0]


async def test_an_episode_without_a_reward_is_left_out(section: EnvironmentSection) -> None:
    """TRL ignores what has no reward; here it is a fault, never a zero."""
    async with open_environment(section, SERVICES) as environment:
        with pytest.raises(EnvironmentCodeError, match="returned None as its reward"):
            await play(environment, problem_of({"task_index": 0}), replies(["I say nothing."]))


async def test_bad_arguments_are_the_models_and_a_missing_task_is_a_fault(section: EnvironmentSection) -> None:
    async with open_environment(section, SERVICES) as environment:
        played = await play(
            environment,
            problem_of({}),
            replies([tool_call("answer", answer=4), tool_call("answer", answer="4"), "Done."]),
        )
        assert [result.status for result in played.trace.results] == [ToolStatus.BAD_ARGUMENTS, ToolStatus.OK]
        with pytest.raises(EnvironmentCodeError, match="reset: "):
            await environment.begin(problem_of({"task_index": 7}))


def test_it_needs_no_data_set(section: EnvironmentSection) -> None:
    assert next(iter(own_rows(section))) == {"episode": 0}
