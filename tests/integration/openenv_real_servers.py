"""Servers of the real openenv package, each in a process of its own: the environment that `openenv init` writes, and
one with MCP tools. `python openenv_real_servers.py FOLDER NAME` serves one until killed, and prints its port."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PYTHON_ENV = "RSTAR2_OPENENV_PYTHON"
"""The Python that has openenv. `make test-environments` sets it: verifiers needs another release of mcp."""


@contextmanager
def serving(folder: Path, name: str) -> Iterator[str]:
    """The address of a running server."""
    python = os.environ[PYTHON_ENV]
    if name == "echo":
        openenv = Path(python).with_name("openenv")
        subprocess.run([openenv, "init", "echo_env", "--output-dir", folder], check=True, capture_output=True)
    command = [python, str(Path(__file__)), str(folder), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _echo() -> Any:
    from openenv.core.env_server.http_server import create_app

    models = importlib.import_module("echo_env.models")
    environment = importlib.import_module("echo_env.server.echo_env_environment").EchoEnvironment
    return create_app(environment, models.EchoAction, models.EchoObservation, max_concurrent_envs=64)


def _tools() -> Any:
    """A word to guess, with two tools, rewards, and tasks."""
    from fastmcp import FastMCP
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
    from openenv.core.env_server.types import Observation, State

    words = {"train": ["tea", "oat"], "test": ["rye"]}

    class GuessEnvironment(MCPEnvironment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            server = FastMCP("guess")
            self.word, self.is_right = "", False

            @server.tool
            def length() -> int:
                """How many letters the word has."""
                return len(self.word)

            @server.tool
            def guess(word: str, sure: bool | None = None) -> str:
                """Guess the word."""
                if not word or sure is False:
                    raise ValueError("say a word")
                self.is_right = word == self.word
                return "right" if self.is_right else "wrong"

            super().__init__(server)

        def reset(self, split: str = "train", index: int = 0, **_: Any) -> Observation:
            self.word, self.is_right = words[split][index], False
            return Observation(done=False)

        async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
            observation = await super().step_async(action, timeout_s=timeout_s, **kwargs)
            observation.done = self.is_right
            observation.reward = float(self.is_right)
            return observation

        def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
            raise NotImplementedError

        @property
        def state(self) -> State:
            return State()

        def list_splits(self) -> list[str]:
            return list(words)

        def list_tasks(self, split: str) -> list[dict[str, str]]:
            return [{"id": f"{split}-{index}"} for index in range(len(words[split]))]

        def num_tasks(self, split: str) -> int:
            return len(words[split])

        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, str]]:
            return self.list_tasks(split)[start:stop]

    return create_app(GuessEnvironment, CallToolAction, CallToolObservation, max_concurrent_envs=64)


def main() -> None:
    import socket

    import uvicorn

    folder, name = sys.argv[1:]
    sys.path.insert(0, folder)
    app = {"echo": _echo, "tools": _tools}[name]()
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
