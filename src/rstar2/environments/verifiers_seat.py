"""The model's seat in an episode of verifiers, played from outside. Imports verifiers.

Verifiers runs an episode by itself: setup, tool servers, the user's turns, finalize and rewards are the package's own
code. Instead of a harness it starts this one, which waits for the agent loop. The loop gets the next message and passes
on the model's text, and the tokens stay those of the engine.
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

from rstar2.environments.verifiers_trace import VerifiersTraceWriter, assistant_message

HARNESS = "rstar2_seat"
"""The harness's name: verifiers imports a harness as a top-level module."""
CURRENT: contextvars.ContextVar["Seat"] = contextvars.ContextVar("rstar2_seat")
"""The seat of the episode that runs in the current task."""

__all__ = ["SeatHarness"]


class Seat:
    """The channel between verifiers' episode, which is its own asyncio task, and the agent loop."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.is_over = False
        """Whether a stop condition of the task has ended the conversation."""
        self.urls: Mapping[str, str] = {}
        """The addresses of the episode's tool servers."""
        self.said: list[str] = []
        """The model's texts in turns without a call."""
        self.heard: list[str] = []
        """The user's replies to these turns."""
        self._trace: Any = None
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        self._segment: asyncio.Future[None] | None = None
        """Set while verifiers waits for the model's turn."""
        self._record: asyncio.Future[Callable[[VerifiersTraceWriter], None] | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._num_running = 0
        self._num_calls = 0
        self._is_finished = False

    # The agent loop's side.

    async def next_message(self) -> str | None:
        """Wait for the user's next message; empty for the task's own prompt, None if the conversation is over."""
        return await self._messages.get()

    def end(self) -> None:
        """End the conversation for the agent loop."""
        self._messages.put_nowait(None)

    async def say(self, text: str) -> str | None:
        """Pass on the model's turn without a call; returns the user's reply."""
        self.said.append(text)
        self._writer.add(assistant_message(text), sampled=True)
        self._release()
        reply = await self.next_message()
        if reply is not None:
            self.heard.append(reply)
            self._writer.add(UserMessage(content=reply))
        return reply

    async def call(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> tuple[bool, str]:
        """Run a call; returns its success and text. The calls of one turn all begin before any of them ends; after the
        last, the task's stop conditions are checked."""
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

    def finish(self, record: Callable[[VerifiersTraceWriter], None], stop: str | None, cut_off: str | None) -> None:
        """End the rollout. `record` writes all of it into the trace before the rewards read it. `stop` is the limit
        that it reached, and `cut_off` the model's unfinished turn."""
        self._is_finished = True
        if self._segment is not None:
            if cut_off is not None:
                self._writer.add(assistant_message(cut_off), sampled=True)
            if stop is not None:
                self._trace.stop(stop)
        self._settle(record)
        self._release()

    def abandon(self) -> None:
        """End a rollout whose reward is not needed."""
        self._is_finished = True
        self._settle(None)

    def _settle(self, record: Callable[[VerifiersTraceWriter], None] | None) -> None:
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
        self._writer = VerifiersTraceWriter(trace)

    async def turn(self, messages: Sequence[Any] | None) -> None:
        """Play one turn. If it adds nothing to the trace, verifiers takes the exchange as ended."""
        if self._is_finished or await self._stops():
            return
        self._segment = asyncio.get_running_loop().create_future()
        self._messages.put_nowait("\n\n".join(_text_of(message) for message in messages or ()))
        await self._segment

    async def closed(self) -> None:
        """End the conversation, and wait until the whole rollout is in the trace; finalize and rewards follow."""
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
    """The harness that stands for the agent's program."""

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
