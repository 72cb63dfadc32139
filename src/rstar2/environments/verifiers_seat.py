"""The model's seat in an episode of verifiers, played from outside. Imports verifiers.

Verifiers runs an episode by itself: setup, tool servers, the user's side, finalize and rewards are the package's own
code. Where it would start a harness, it finds this one, which waits for the agent loop. So the loop asks for the
next message and says what the model wrote, and the tokens stay those of the engine.
"""

import asyncio
import contextlib
import contextvars
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifiers.v1 import Harness, HarnessConfig, HarnessSession, ToolCall, ToolMessage, Trace, UserMessage
from verifiers.v1.session import call_hook, hook_boundary
from verifiers.v1.types import content_text

from rstar2.environments.verifiers_trace import TraceWriter, assistant_message

HARNESS = "rstar2_seat"
"""Verifiers imports a harness by the name of a top-level module."""
CURRENT: contextvars.ContextVar["Seat"] = contextvars.ContextVar("rstar2_seat")
"""The seat of the episode that runs in this task."""

__all__ = ["SeatHarness"]


class Seat:
    """What verifiers' episode, a task of its own, and the agent loop say to each other."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.is_over = False
        """Whether a stop condition of the task has ended the conversation."""
        self.urls: Mapping[str, str] = {}
        """The addresses of the episode's tool servers."""
        self.said: list[str] = []
        """What the model wrote in turns without a call."""
        self.heard: list[str] = []
        """What the user replied to these turns."""
        self._trace: Any = None
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._segment: asyncio.Future[None] | None = None
        """Set while verifiers waits for what the model says in its turn."""
        self._record: asyncio.Future[Callable[[TraceWriter], None] | None] = asyncio.get_running_loop().create_future()
        self._num_running = 0
        self._num_calls = 0
        self._is_finished = False

    # The agent loop's side.

    async def next_message(self) -> str | None:
        """What the user says next; None if the conversation is over. Empty for the task's own prompt."""
        return await self._messages.get()

    def end(self) -> None:
        """Nothing more will be asked."""
        self._messages.put_nowait(None)

    async def say(self, text: str) -> str | None:
        """The model's turn without a call, and the user's reply."""
        self.said.append(text)
        self._writer.add(assistant_message(text), sampled=True)
        self._release()
        reply = await self.next_message()
        if reply is not None:
            self.heard.append(reply)
            self._writer.add(UserMessage(content=reply))
        return reply

    async def call(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> tuple[bool, str]:
        """Whether a tool call succeeded, and its text. The calls of one turn all begin before any of them ends; after
        the last, the task's stop conditions are asked."""
        self._num_calls += 1
        call = ToolCall(id=f"live_{self._num_calls}", name=name, arguments=json.dumps(arguments))
        if self._num_running:
            last = next(node for node in reversed(self._trace.nodes) if node.sampled)
            last.message.tool_calls.append(call)
        else:
            self._writer.add(assistant_message("", [call]), sampled=True)
        self._num_running += 1
        try:
            await asyncio.sleep(0)  # the other calls of the turn begin
            succeeded, text = await run()
        finally:
            self._num_running -= 1
        self._writer.add(ToolMessage(tool_call_id=call.id, content=text, name=name))
        if not self._num_running and await self._stops():
            self.is_over = True
        return succeeded, text

    def finish(self, record: Callable[[TraceWriter], None], stop: str | None, cut_off: str | None) -> None:
        """The rollout is over. `record` writes all of it into the trace before the rewards read it. `stop` is the limit
        that it ran into, and `cut_off` what the model had written of a turn by then."""
        self._is_finished = True
        if self._segment is not None:
            if cut_off is not None:
                self._writer.add(assistant_message(cut_off), sampled=True)
            if stop is not None:
                self._trace.stop(stop)
        self._settle(record)
        self._release()

    def abandon(self) -> None:
        """The rollout is over and nobody wants its reward."""
        self._is_finished = True
        self._settle(None)

    def _settle(self, record: Callable[[TraceWriter], None] | None) -> None:
        if not self._record.done():
            self._record.set_result(record)

    def _release(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None and not segment.done():
            segment.set_result(None)

    # Verifiers' side.

    def opened(self, trace: Any, urls: Mapping[str, str]) -> None:
        if self._trace is not None:
            raise ValueError("the episode runs the model more than once, which rstar2 cannot play")
        self._trace, self.urls = trace, urls
        self._writer = TraceWriter(trace)

    async def turn(self, messages: Sequence[Any] | None) -> None:
        """One turn of the conversation. If nothing was said in it, verifiers takes the exchange as ended."""
        if self._is_finished or await self._stops():
            return
        self._segment = asyncio.get_running_loop().create_future()
        self._messages.put_nowait("\n\n".join(_text_of(message) for message in messages or ()))
        await self._segment

    async def closed(self) -> None:
        """The conversation is over. Finalize and rewards follow when all of the rollout is in the trace."""
        self.end()
        record = await asyncio.shield(self._record)
        if record is not None:
            record(self._writer)

    async def _stops(self) -> bool:
        for stop in self.task.hooks("stop"):
            if await call_hook(stop, {Trace: self._trace}):
                self._trace.stop(stop.__name__)
                return True
        return False


def _text_of(message: Any) -> str:
    content = message.content
    if not isinstance(content, str) and any(part.type != "text" for part in content or ()):
        raise ValueError("the user's message holds an image, which rstar2 cannot show to the model")
    text: str = content_text(content)
    return text


class SeatSession(HarnessSession):  # type: ignore[misc]
    def __init__(self, seat: Seat, *args: Any) -> None:
        super().__init__(*args)
        self._seat = seat

    async def turn(self, messages: Sequence[Any] | None = None) -> None:
        await self._seat.turn(messages)

    async def close(self) -> None:
        if not self._closed:
            await super().close()
            await self._seat.closed()


class SeatHarness(Harness[HarnessConfig]):  # type: ignore[misc]
    """What verifiers takes for the agent's program."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def session(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> SeatSession:
        seat = CURRENT.get()
        seat.opened(trace, mcp_urls)
        return SeatSession(seat, self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url)

    async def launch(self, *_: Any) -> Any:
        raise AssertionError("a session is played turn by turn")


def unsupported_hook(task_class: Any) -> str | None:
    """The name of a hook that needs verifiers' own model calls: it rewrites or reads requests and responses."""
    for name in dir(task_class):
        function = getattr(task_class, name, None)
        if hasattr(function, "intercept"):
            return name
        with contextlib.suppress(TypeError):
            if hasattr(function, "stop") and hook_boundary(function, allow_trace=True) is not Trace:
                return name
    return None


sys.modules.setdefault(HARNESS, sys.modules[__name__])
