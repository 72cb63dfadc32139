"""The playground's solver: the agent that `rstar2 solve` would run, its events as the page reads them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rstar2.agent.events import AgentEvent, TextKind
    from rstar2.cli.agent_setup import Asked, ReadyAgent
    from rstar2.records import Trace


class AgentSolver:
    """Satisfies `Solver`. An engine is loaded with its first problem and kept; each problem has its own tools."""

    def __init__(self, asked: "Sequence[Asked]") -> None:
        self._asked = {_name(each): each for each in asked}
        self._ready: dict[str, ReadyAgent] = {}
        self._stack = AsyncExitStack()

    @property
    def engines(self) -> list[str]:
        return list(self._asked)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def solve(self, engine: str, problem: str) -> AsyncGenerator[dict[str, Any]]:
        from rstar2.records import Problem

        ready = await self._agent(engine)
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        translate = EventTranslator()

        def observe(event: "AgentEvent") -> None:
            for line in translate(event):
                events.put_nowait(line)

        async def roll() -> "Trace":
            async with ready.tools() as tools:
                return await ready.agent.rollout(Problem("playground", problem, answer=""), tools, observer=observe)

        rollout = asyncio.ensure_future(roll())
        rollout.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (line := await events.get()) is not None:
                yield line
            yield end_event(rollout.result())
        finally:
            rollout.cancel()
            await asyncio.gather(rollout, return_exceptions=True)

    async def _agent(self, engine: str) -> "ReadyAgent":
        from rich.console import Console

        from rstar2.cli.agent_setup import ready_agent

        if engine not in self._ready:
            context = ready_agent(self._asked[engine], Console(stderr=True))
            self._ready[engine] = await self._stack.enter_async_context(context)
        return self._ready[engine]


class EventTranslator:
    """Turns the agent's events of one rollout into those that the page shows."""

    def __init__(self) -> None:
        from rstar2.agent.events import SpanReader

        self._make_reader = SpanReader
        self._reader = SpanReader()

    def __call__(self, event: "AgentEvent") -> list[dict[str, Any]]:
        from rstar2.agent.events import CallEnded, CallStarted, Ended, TextGenerated, TurnRestarted, TurnStarted
        from rstar2.web.trace_wire import call_json, result_json

        match event:
            case TurnStarted(opening=opening):
                self._reader = self._make_reader()
                return [{"type": "turn"}, *_texts(self._reader.feed(opening))]
            case TextGenerated(text=text):
                return _texts(self._reader.feed(text))
            case TurnRestarted(reason=reason):
                self._reader = self._make_reader()
                return [{"type": "restart", "reason": reason}]
            case CallStarted(call=call):
                return [*_texts(self._reader.finish()), {"type": "call", **call_json(call)}]
            case CallEnded(result=result):
                return [{"type": "result", **result_json(result)}]
            case Ended():
                return _texts(self._reader.finish())


def _texts(pieces: "list[tuple[TextKind, str]]") -> list[dict[str, Any]]:
    """A call is shown as code when it is run, not as escaped JSON while it is written."""
    return [{"type": "text", "kind": span.value, "text": text} for span, text in pieces if span.value != "tool_call"]


def end_event(trace: "Trace") -> dict[str, Any]:
    from rstar2.grading import extract_answer

    return {
        "type": "end",
        "outcome": trace.outcome.value,
        "note": trace.note,
        "answer": extract_answer(*trace.turn_texts),
        "num_tokens": trace.num_sampled_tokens,
    }


def _name(asked: "Asked") -> str:
    from rstar2.rollout.engines import DEFAULT_MODEL, UNNAMED

    engine, model = asked.recipe.engine, asked.recipe.model.name
    if engine.script is not None:
        return Path(engine.script).name
    return model if model != UNNAMED else engine.base_url or DEFAULT_MODEL
