"""An OpenAI-compatible server on loopback that says what the test wants, well or badly."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web


@dataclass
class FakeServer:
    """`replies` are given one after the other. `mishap` is what goes wrong, for the first `num_mishaps` requests."""

    replies: list[str] = field(default_factory=list)
    token_replies: list[list[int]] = field(default_factory=list)
    mishap: str = ""
    num_mishaps: int = 1_000_000
    models: list[str] = field(default_factory=lambda: ["fake-model"])
    api_key: str | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/models", self.list_models)
        router.add_post("/v1/chat/completions", self.chat)
        router.add_post("/v1/completions", self.completions)

    async def list_models(self, request: web.Request) -> web.Response:
        if not self._is_authorized(request):
            return _error(401, "Incorrect API key provided")
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        early = await self._early_answer(request)
        if early is not None:
            return early
        text = self.replies.pop(0)
        pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
        choices = [{"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        return await self._stream(request, [{"index": 0, "delta": {"role": "assistant", "content": ""}}, *choices])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        early = await self._early_answer(request)
        if early is not None:
            return early
        if not self.token_replies:
            return await self._stream(request, [{"text": self.replies.pop(0), "finish_reason": "stop"}])
        ids = self.token_replies.pop(0)
        choices: list[dict[str, Any]] = [
            {"token_ids": [token], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": None} for token in ids
        ]
        choices[-1]["finish_reason"] = "stop"
        return await self._stream(request, choices)

    async def _early_answer(self, request: web.Request) -> web.StreamResponse | None:
        """What is said instead of a reply, if anything is."""
        body = await request.json()
        self.requests.append(body)
        if not self._is_authorized(request):
            return _error(401, "Incorrect API key provided")
        if body["model"] not in self.models:
            return _error(404, f"The model `{body['model']}` does not exist.")
        self.num_mishaps -= 1
        if self.num_mishaps < 0:
            self.mishap = ""
        match self.mishap:
            case "busy":
                return _error(429, "slow down")
            case "too long":
                return _error(400, "This model's maximum context length is 10 tokens.")
            case "other limit" if "max_tokens" in body:
                return _error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
            case "web page":
                return web.Response(text="<html>Welcome!</html>", content_type="text/html")
            case "garbage":
                return web.Response(text="data: {oops\n\n", content_type="text/event-stream")
        return None

    async def _stream(self, request: web.Request, choices: list[dict[str, Any]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, choice in enumerate(choices):
            if number == len(choices) // 2 and self.mishap:
                if self.mishap == "dies":
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if self.mishap == "stops":
                    return response
                if self.mishap == "error event":
                    await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
                    return response
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _is_authorized(self, request: web.Request) -> bool:
        return self.api_key is None or request.headers.get("Authorization") == f"Bearer {self.api_key}"


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)


Server = TypeVar("Server", bound=FakeServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """On a thread of its own, for command lines that bring their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> web.AppRunner:
        app = web.Application()
        server.add_routes(app.router)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
