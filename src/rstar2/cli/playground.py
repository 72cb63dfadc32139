"""The viewer's playground: for each model that it was given, the agent that `rstar2 serve --agent` would serve."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from aiohttp import web

    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.serve.agent import AgentApi

MAX_EPISODES = 8
"""The most episodes at a time: enough for the pages of one person."""


class AgentPlayground:
    """Satisfies `Playground`. A model is loaded with its first question and kept."""

    def __init__(self, asked: "Sequence[AgentRequest]", seed: int | None = None) -> None:
        self._asked = {_name(each): each for each in asked}
        self._seed = seed
        self._ready: dict[str, AgentApi] = {}
        self._loading = asyncio.Lock()
        self._stack = AsyncExitStack()

    @property
    def models(self) -> list[str]:
        return list(self._asked)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def handle(self, request: "web.Request") -> "web.StreamResponse":
        from rstar2.serve.routing import answered

        return await answered(self._answer, request)

    async def _answer(self, request: "web.Request") -> "web.StreamResponse":
        from rstar2.serve.errors import OpenAIError

        if request.content_type != "application/json":
            raise OpenAIError(415, "send the body as `Content-Type: application/json`")
        try:
            model = (await request.json())["model"]
        except (ValueError, KeyError, TypeError):
            raise OpenAIError(400, "send a JSON object with `model` and `messages`") from None
        if model not in self.models:
            raise OpenAIError(
                404, f"model: there is no {model!r} here; there is {', '.join(self._asked)}", param="model"
            )
        api = await self._agent(model)
        return await api.handle(request)

    async def _agent(self, model: str) -> "AgentApi":
        from rstar2.cli.agent_setup import served_agent
        from rstar2.cli.console import Console
        from rstar2.serve import ServeSettings
        from rstar2.serve.agent import AgentApi
        from rstar2.serve.service import ModelService

        async with self._loading:
            if model not in self._ready:
                opening = served_agent(self._asked[model], Console(stderr=True), model, self._seed)
                served, agent = await self._stack.enter_async_context(opening)
                self._ready[model] = AgentApi(ModelService(served, ServeSettings(max_in_flight=MAX_EPISODES)), agent)
        return self._ready[model]


def _name(asked: "AgentRequest") -> str:
    from rstar2.rollout.engines import DEFAULT_MODEL, UNNAMED

    engine, model = asked.recipe.engine, asked.recipe.model.name
    if engine.script is not None:
        return Path(engine.script).name
    return model if model != UNNAMED else engine.base_url or DEFAULT_MODEL
