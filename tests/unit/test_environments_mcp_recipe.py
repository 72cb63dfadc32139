"""What a recipe says about MCP servers: the page's example is one, and mistakes are named."""

import subprocess
import sys
import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from docs_pages import ROOT, blocks
from rstar2.agent import AgentLimits
from rstar2.config import EnvironmentSection, McpServer, load_recipe
from rstar2.environments.mcp import open_mcp
from rstar2.environments.user_code import Caller
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


def test_the_example_of_the_page_is_a_recipe() -> None:
    (block,) = blocks(ROOT / "docs" / "mcp.md", "toml")
    section = EnvironmentSection.model_validate(tomllib.loads(block.text)["environment"])
    assert list(section.mcp) == ["time", "notes", "search"]
    assert (section.tools, section.mcp["time"].tools) == ((), ("convert_time",))
    assert section.mcp["notes"].per_episode


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "either a command or a url"),
        ({"command": ["x"], "url": "http://a"}, "either a command or a url"),
        ({"url": "a.example.org"}, "should match pattern"),
        ({"url": "http://a", "env": {"A": "b"}}, "env is for a server that is started by command"),
        ({"command": ["x"], "token_env": "TOKEN"}, "token_env is for a server at url"),
        ({"command": ["x"], "timeout_s": 0.0}, "greater than 0"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        McpServer.model_validate(settings)


def test_a_slow_server_is_given_its_time() -> None:
    """The agent's own deadline would repeat the call."""
    usual = load_recipe("quickstart")
    slow = load_recipe("quickstart", ['environment.mcp.slow.url="http://a"', "environment.mcp.slow.timeout_s=1000.0"])
    assert AgentLimits.of(usual, usual.eval).tool_deadline_s < 1000
    assert AgentLimits.of(slow, slow.eval).tool_deadline_s > 2000


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rstar2.environments.mcp.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UserError, match=r"environment\.mcp needs the package mcp: pip install 'rstar2\[mcp\]'"):
        async with open_mcp({"a": McpServer(command=("true",))}, Caller(1.0, stops=False)):
            pass


def test_the_sdk_is_imported_only_for_servers() -> None:
    code = "import sys, rstar2.environments.mcp; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
