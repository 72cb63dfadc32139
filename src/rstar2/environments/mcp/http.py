"""A server at an address: the SDK's streamable HTTP over a client that cuts long answers.

If a request fails or is refused, this transport answers it with an error for that request alone. The SDK would end the
session, and with it all calls in flight.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED

from rstar2.environments.mcp.messages import BoundedLines, BoundedMessage, failure

CONNECT_S = 10.0
END_S = 2.0
SESSION_HEADER = "mcp-session-id"


class HttpServer:
    """A transport of the SDK: its context manager yields the streams of messages from and to the server."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._stack = AsyncExitStack()
        self._http = _BoundedHttp()

    async def __aenter__(self) -> Any:
        client = httpx2.AsyncClient(
            headers=self._headers,
            timeout=httpx2.Timeout(None, connect=CONNECT_S),  # a call has a deadline of its own
            transport=self._http,
            trust_env=False,
        )
        await self._stack.enter_async_context(client)
        return await self._stack.enter_async_context(
            streamable_http_client(self._url, http_client=client, max_sse_event_size=None)
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    @property
    def has_ended(self) -> bool:
        return self._http.is_lost

    @property
    def end(self) -> str:
        return self._http.last_failure


class _BoundedHttp(httpx2.AsyncBaseTransport):
    def __init__(self) -> None:
        self._http = httpx2.AsyncHTTPTransport(limits=httpx2.Limits())
        self.is_lost = False
        """Whether a new session is needed: the address refuses connections, or the server has forgotten the session."""
        self.last_failure = "it closed the connection"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request_id = _id_of(request)
        if request.method == "DELETE":  # the end of a session, not worth a longer wait
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), END_S)
        try:
            response = await self._http.handle_async_request(request)
        except httpx2.TransportError as error:
            self.is_lost |= isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout))
            if request_id is None:
                raise
            return self._failed(request_id, f"{type(error).__name__}: {error}")
        status = response.status_code
        has_forgotten = status == 404 and SESSION_HEADER in request.headers
        if request_id is not None and (status in (401, 403, 429) or status >= 500 or has_forgotten):
            await response.aclose()
            self.is_lost |= has_forgotten
            return self._failed(request_id, f"it answered with HTTP {status}")
        kind = response.headers.get("content-type", "")
        is_stream = kind.startswith("text/event-stream")
        if not is_stream and (request_id is None or not kind.startswith("application/json")):
            return response
        headers = {name: value for name, value in response.headers.items() if name != "content-length"}
        stream = _BoundedStream(response, request_id, is_stream)
        return httpx2.Response(status, headers=headers, stream=stream, extensions=response.extensions)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _failed(self, request_id: Any, reason: str) -> httpx2.Response:
        self.last_failure = reason
        content = failure(request_id, CONNECTION_CLOSED, reason)
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=content)


class _BoundedStream(httpx2.AsyncByteStream):
    """The body of a response, with overlong messages cut."""

    def __init__(self, response: httpx2.Response, request_id: Any, is_stream: bool) -> None:
        self._response = response
        self._request_id = request_id
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        lines, body = BoundedLines(), BoundedMessage()
        try:
            async for piece in self._response.stream:
                if self._is_stream:
                    for line in lines.feed(piece, self._request_id):
                        yield line + b"\n"
                else:
                    body.add(piece)
        except httpx2.TransportError as error:
            if self._is_stream:
                raise
            yield failure(self._request_id, CONNECTION_CLOSED, f"{type(error).__name__}: {error}")
            return
        if not self._is_stream:
            yield body.text(self._request_id)

    async def aclose(self) -> None:
        await self._response.aclose()


def _id_of(request: httpx2.Request) -> Any:
    """The id of the call that a request posts; None if there is none."""
    if request.method != "POST":
        return None
    message = json.loads(request.content)
    return message.get("id") if "method" in message else None
