"""A served agent in the test's own process: a policy that is written down, the real loop and the real sandbox."""

import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

from rstar2.agent import AgentLimits, ChatFormat, PythonTool
from rstar2.config import parse_recipe
from rstar2.engine import Chunk, Engine, Sampling
from rstar2.engine.scripted import Policy, ScriptedEngine, ScriptedPrompt
from rstar2.environments import Environment, Services
from rstar2.environments.open import open_environment
from rstar2.sandbox import Executor
from rstar2.serve import ServedAgent, ServedModel, Server, ServeSettings, create_app
from rstar2.serve.app import SERVICE
from rstar2.serve.service import ModelService

CONTEXT_TOKENS = 4096
QUESTION = re.compile(r"square of (\d+)")


def call_of(code: str, name: str = PythonTool.schema.name) -> str:
    call = {"name": name, "arguments": {"code": code, "input": ""}}
    return f"I run it.</reason>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def square(prompt: ScriptedPrompt) -> str:
    """Squares the number of the last question with a program, and answers what the program printed."""
    if prompt.text.rstrip().endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n<reason>"):
        printed = prompt.text.rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
        return rf"It is clear.</reason><answer>\boxed{{{printed}}}</answer>"
    return call_of(f"print({QUESTION.findall(prompt.text)[-1]} ** 2)")


def running(code: str) -> Policy:
    """Runs the program, then answers."""
    return lambda prompt: call_of(code) if prompt.turn == 0 else r"</reason><answer>\boxed{1}</answer>"


@dataclass
class WatchedEngine:
    """What the engine saw and made, turn by turn."""

    engine: Engine
    turns: list[tuple[str, list[int]]] = field(default_factory=list)
    """The session of each turn, and all ids of its sequence."""

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        ids = list(token_ids)
        self.turns.append((session, ids))
        async for chunk in self.engine.generate(session, token_ids, sampling, max_tokens):
            ids += chunk.token_ids
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass(frozen=True)
class RunningAgent:
    root: str
    service: ModelService
    engine: WatchedEngine
    client: openai.AsyncOpenAI

    async def ask(self, question: str, **fields: Any) -> Any:
        return await self.client.chat.completions.create(
            model="agent", messages=[{"role": "user", "content": question}], **fields
        )


@asynccontextmanager
async def python_environment(executor: Executor, text: str = "") -> AsyncIterator[Environment]:
    """`[environment]` and `[sandbox]` of a recipe are in `text`; by default mathematics with the Python tool."""
    recipe = parse_recipe(f'name = "served"\n[model]\nname = "auto"\n{text}')
    async with open_environment(recipe.environment, Services(recipe, executor)) as environment:
        yield environment


@asynccontextmanager
async def serving_agent(
    chat: ChatFormat,
    environment: Environment,
    policy: Policy | None = None,
    *,
    engine: Engine | None = None,
    settings: ServeSettings | None = None,
    limits: AgentLimits | None = None,
) -> AsyncIterator[RunningAgent]:
    made = engine or ScriptedEngine(policy or square, chat.tokenizer, chat.end_of_turn_id)
    watched = WatchedEngine(made)
    agent = ServedAgent(environment, limits or AgentLimits(), Sampling(temperature=0.6))
    app = create_app(ServedModel(watched, chat, "agent", CONTEXT_TOKENS), settings, agent)  # type: ignore[arg-type]
    server, listener = Server(app), socket.create_server(("127.0.0.1", 0))
    await server.start([listener])
    root = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with openai.AsyncOpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0) as client:
            yield RunningAgent(root, app[SERVICE], watched, client)
    finally:
        await server.drain(0.0)


@asynccontextmanager
async def python_agent(
    chat: ChatFormat, executor: Executor, policy: Policy | None = None, text: str = "", **more: Any
) -> AsyncIterator[RunningAgent]:
    async with (
        python_environment(executor, text) as environment,
        serving_agent(chat, environment, policy, **more) as found,
    ):
        yield found
