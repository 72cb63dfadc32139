"""From options to an agent that is ready: its engine, its way of writing, its tools. What was opened is closed."""

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.cli.agent_options import DEFAULT_MODEL, AgentOptions, EngineKind
from rstar2.cli.output import note
from rstar2.cli.sandbox.service_token import TOKEN_ENV
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from rstar2.agent import Agent, ChatFormat, Tool
    from rstar2.engine import Engine
    from rstar2.sandbox.executor import Executor


@dataclass(frozen=True, slots=True)
class ReadyAgent:
    agent: "Agent"
    model: str
    executor: "Executor"
    """Where its programs run: shared by all conversations."""
    make_tools: "Callable[[], list[Tool]]"
    """For one conversation; whoever makes them closes them."""

    @asynccontextmanager
    async def tools(self) -> "AsyncIterator[list[Tool]]":
        from rstar2.agent.tool import close_all

        tools = self.make_tools()
        try:
            yield tools
        finally:
            await close_all(tools)


@asynccontextmanager
async def ready_agent(options: AgentOptions, progress: "Console") -> AsyncIterator[ReadyAgent]:
    """Loads the model, saying so on `progress`; a sandbox on this machine starts with the first call. The tool is the
    one that the model was trained with, unless the options say otherwise."""
    from rstar2.agent import Agent, AgentLimits, PythonTool, read_format
    from rstar2.engine import Sampling

    check_options(options)
    limits = AgentLimits(max_turns=options.max_turns, max_response_tokens=options.max_tokens)
    sampling = Sampling(temperature=options.temperature, seed=options.seed)
    async with AsyncExitStack() as stack:
        executor = make_executor(options)
        stack.push_async_callback(executor.close)
        makers = _tool_makers(options.tools, executor)
        with progress.status("loading the model"):
            opened = await _open(options)
        stack.push_async_callback(opened.engine.close)
        trained = None if opened.folder is None else read_format(opened.folder).tool
        if trained is not None and options.tools and trained not in options.tools:
            note(f"{opened.model} was trained with the tool {trained}: it may not know how to call another")
        makers = makers or _tool_makers([trained or PythonTool.schema.name], executor)
        agent = Agent(opened.engine, opened.chat, limits, sampling)
        yield ReadyAgent(agent, opened.model, executor, lambda: [make() for make in makers])


def check_options(options: AgentOptions) -> None:
    if options.script is not None and options.base_url is not None:
        raise UserError("--script and --base-url exclude each other: give one of them")
    kind = engine_kind(options)
    if kind == "scripted" and options.script is None:
        raise UserError("--engine scripted needs --script: the file of its replies")
    if kind != "scripted" and options.script is not None:
        raise UserError(f"--script is for --engine scripted, not {kind}: leave one of them out")
    if kind == "openai" and options.base_url is None:
        raise UserError("--engine openai needs --base-url: the address of the server")
    if kind in ("embedded", "scripted") and options.base_url is not None:
        raise UserError(f"--base-url is for --engine openai or vllm, not {kind}: leave one of them out")
    if options.base_url is None:
        for name, value in (("--api-key-env", options.api_key_env), ("--tokenizer", options.tokenizer)):
            if value is not None:
                raise UserError(f"{name} is for a server, and there is none: give --base-url as well, or leave it out")


def engine_kind(options: AgentOptions) -> EngineKind:
    """What --engine says, or what the other options make of it."""
    if options.engine is not None:
        return options.engine
    if options.script is not None:
        return "scripted"
    return "openai" if options.base_url is not None else "embedded"


@dataclass(frozen=True, slots=True)
class _Opened:
    engine: "Engine"
    chat: "ChatFormat"
    """How its model writes."""
    model: str
    folder: Path | None
    """The model's, or its tokenizer's, where it is known."""


async def _open(options: AgentOptions) -> _Opened:
    from rstar2.agent import ChatFormat, load_chat
    from rstar2.engine.plain_text import PlainTextTokenizer
    from rstar2.models import resolve

    kind = engine_kind(options)
    if options.base_url is not None:
        open_server = _vllm_server if kind == "vllm" else _server_engine
        return await open_server(options, options.base_url)
    if options.script is not None:
        from rstar2.engine.scripted import ScriptedEngine, read_script

        policy = read_script(options.script)
        folder = resolve(options.model) if options.model else None
        chat = load_chat(folder, options.template) if folder else ChatFormat.of(PlainTextTokenizer())
        engine = ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id)
        return _Opened(engine, chat, options.script.name, folder)
    name = options.model or DEFAULT_MODEL
    folder = resolve(name)
    chat = load_chat(folder, options.template)
    return _Opened(_vllm_in_process(folder) if kind == "vllm" else _embedded_engine(folder), chat, name, folder)


def _vllm_in_process(folder: Path) -> "Engine":
    from rstar2.engine.vllm import VllmInProcessEngine

    # Standard output is for the solution, and vLLM would tell its life there.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    return VllmInProcessEngine.from_folder(folder)


async def _vllm_server(options: AgentOptions, base_url: str) -> _Opened:
    from rstar2.agent import load_chat
    from rstar2.engine.openai import offered_models
    from rstar2.engine.vllm import VllmServerEngine, root_of

    key = _key(options.api_key_env)
    model = options.model or _only_one(await offered_models(f"{root_of(base_url)}/v1", key), base_url)
    folder = options.tokenizer or _folder_of(model)
    chat = load_chat(folder, options.template)
    return _Opened(await VllmServerEngine.connect(base_url, model, key), chat, model, folder)


def _folder_of(model: str) -> Path:
    """vLLM's name for a model is where it got it from, unless it was told another."""
    from rstar2.models import resolve

    try:
        return resolve(model)
    except UserError as error:
        raise UserError(f"--tokenizer is needed, the folder of the server's model: {error}") from None


def _embedded_engine(folder: Path) -> "Engine":
    try:
        from rstar2.engine.embedded import EmbeddedEngine
    except ImportError as error:
        raise UserError(f"the embedded engine needs {error.name}: run `pip install 'rstar2[train]'`") from None
    return EmbeddedEngine.from_folder(folder)


async def _server_engine(options: AgentOptions, base_url: str) -> _Opened:
    from rstar2.agent import ChatFormat, load_chat
    from rstar2.engine.openai import OpenAIEngine, offered_models
    from rstar2.engine.openai_wire import TextWire, TokenWire
    from rstar2.engine.plain_text import PlainTextTokenizer

    key = _key(options.api_key_env)
    model = options.model or _only_one(await offered_models(base_url, key), base_url)
    if options.tokenizer is None:
        engine = OpenAIEngine(base_url, model, TextWire(), key)
        return _Opened(engine, ChatFormat.of(PlainTextTokenizer()), model, None)
    chat = load_chat(options.tokenizer, options.template)
    return _Opened(OpenAIEngine(base_url, model, TokenWire(), key), chat, model, options.tokenizer)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise UserError(f"--api-key-env: the environment variable {variable} is not set")
    return key


def _only_one(models: list[str], base_url: str) -> str:
    if len(models) == 1:
        return models[0]
    choice = f"it has {', '.join(models[:10])}" if models else "it does not say which it has"
    raise UserError(f"--model is needed: which of the models of {base_url}? ({choice})")


def _tool_makers(names: Sequence[str], executor: "Executor") -> "list[Callable[[], Tool]]":
    from functools import partial

    from rstar2.agent import PYTHON_TOOLS
    from rstar2.cli.tool_file import tool_maker

    makers: list[Callable[[], Tool]] = []
    for name in names:
        if name in PYTHON_TOOLS:
            makers.append(partial(PYTHON_TOOLS[name], executor))
        elif name.endswith(".py"):
            makers.append(tool_maker(Path(name)))
        else:
            raise UserError(f"--tool: {name!r} is neither {' nor '.join(PYTHON_TOOLS)} nor a file that ends in .py")
    return makers


def make_executor(options: AgentOptions) -> "Executor":
    """For programs and for grading alike."""
    if options.sandbox is not None:
        from rstar2.sandbox.client import RemoteExecutor

        return RemoteExecutor(options.sandbox, os.environ.get(TOKEN_ENV))
    from rstar2.sandbox import LocalExecutor

    return LocalExecutor()
