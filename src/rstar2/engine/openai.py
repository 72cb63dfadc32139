"""Any OpenAI-compatible server as an engine, for solving and evaluation: its weights are not ours to train.

A request that can never succeed (a wrong address, a refused key, an unknown model, a prompt that is too long) raises
UserError; a server that is away, busy, or dies in the middle of an answer raises InfrastructureError.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from rstar2.engine.openai_wire import WireFormat
from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import StopReason

CONNECT_S = 10.0
SILENCE_S = 600.0
"""Timeout between two events of an answer: a busy server queues a request for minutes before its first token."""
IDLE_S = 2.0
"""How long an idle connection may be reused: uvicorn, under most of these servers, closes its end after 5 s."""
MAX_EVENT_BYTES = 1 << 22

_BUSY = (408, 409, 425, 429)


class OpenAIEngine:
    """Satisfies `Engine`. `base_url` is the part before /chat/completions; `wire` is the format of requests and
    answers."""

    def __init__(self, base_url: str, model: str, wire: WireFormat, api_key: str | None = None) -> None:
        self._base_url = checked_base_url(base_url)
        self._model = model
        self._wire = wire
        self._headers = headers(api_key)
        self._limit_field = "max_tokens"
        self._http: aiohttp.ClientSession | None = None
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._num_prefill_tokens = 0
        self._num_generated_tokens = 0

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]:
        reader = self._wire.reader(token_ids, max_tokens)
        body = {"model": self._model, **self._wire.body(token_ids, sampling, max_tokens)}
        self._num_prefill_tokens += len(token_ids)
        self._running.add(session)
        self._cancelled.discard(session)
        try:
            async with aclosing(self._choices(body)) as choices:
                async for choice in choices:
                    if session in self._cancelled:
                        yield Chunk((), (), stop_reason=StopReason.CANCELLED)
                        return
                    chunk = reader.read(choice)
                    self._num_generated_tokens += len(chunk.token_ids)
                    if chunk.token_ids or chunk.stop_reason:
                        yield chunk
                    if chunk.stop_reason:
                        return
        finally:
            self._running.discard(session)
        raise InfrastructureError(f"the server at {self._base_url} ended an answer in the middle")

    async def _choices(self, body: Mapping[str, Any]) -> AsyncGenerator[Mapping[str, Any]]:
        """The first choice of every event of one answer."""
        url = self._base_url + self._wire.path
        try:
            async with await self._post(url, body) as response:
                if response.content_type != "text/event-stream":
                    raise UserError(f"{url} does not answer like an OpenAI-compatible server: check --base-url")
                async for event in _events(response.content):
                    if "error" in event:
                        raise InfrastructureError(f"the server at {self._base_url} failed: {_said(event['error'])}")
                    if event.get("choices"):
                        yield event["choices"][0]
        except aiohttp.ClientConnectorError as error:
            raise unreachable(self._base_url, error) from None
        except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError) as error:
            reason = f"the connection to {self._base_url} was lost in the middle of an answer ({error})"
            raise InfrastructureError(reason) from None
        except TimeoutError:
            raise InfrastructureError(f"the server at {self._base_url} said nothing for {SILENCE_S:g} s") from None
        except (aiohttp.ClientError, HttpProcessingError, json.JSONDecodeError) as error:
            raise UserError(f"{url} does not answer like an OpenAI-compatible server ({error})") from None

    async def _post(self, url: str, body: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """Posts a request, and returns the answer once it has begun. Newer models of OpenAI want the token limit under
        another name, and say so."""
        limit = body["max_tokens"]
        rest = {name: value for name, value in body.items() if name != "max_tokens"}
        while True:
            response = await self._connected().post(url, json={**rest, self._limit_field: limit})
            if response.status == 200:
                return response
            said = error_message(await response.read())
            if response.status != 400 or self._limit_field != "max_tokens" or "max_completion_tokens" not in said:
                raise self._refusal(response.status, said)
            self._limit_field = "max_completion_tokens"

    def _refusal(self, status: int, said: str) -> Exception:
        where = f"the server at {self._base_url}"
        if status in (401, 403):
            return refused_key(self._base_url, status, said)
        if status == 404 and "model" in said.lower():
            return UserError(f"{where} has no model {self._model!r} ({said}): choose one with --model")
        if status in (404, 405):
            return UserError(
                f"there is no {self._wire.path} at {self._base_url}: check --base-url, does it lack a /v1?"
            )
        if status in _BUSY or status >= 500:
            return InfrastructureError(f"{where} is not able to answer now ({status}: {said})")
        return UserError(f"{where} refuses the request ({status}: {said})")

    def load(self) -> EngineLoad:
        """The load as far as the client knows it; the server's cache is unknown."""
        return EngineLoad.with_unknown_cache(len(self._running), self._num_prefill_tokens, self._num_generated_tokens)

    async def cancel(self, session: str) -> None:
        if session in self._running:
            self._cancelled.add(session)

    async def release(self, session: str) -> None:
        self._cancelled.discard(session)

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    def _connected(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
            self._http = aiohttp.ClientSession(
                connector=connector(), headers=self._headers, timeout=timeout, read_bufsize=MAX_EVENT_BYTES
            )
        return self._http


async def offered_models(base_url: str, api_key: str | None = None) -> list[str]:
    """The names that a server offers; empty if it does not say."""
    base_url = checked_base_url(base_url)
    timeout = aiohttp.ClientTimeout(total=3 * CONNECT_S)
    async with aiohttp.ClientSession(headers=headers(api_key), timeout=timeout) as http:
        try:
            async with http.get(f"{base_url}/models") as response:
                data = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise unreachable(base_url, error) from None
        except (aiohttp.ClientError, TimeoutError):
            return []
    if response.status in (401, 403):
        raise refused_key(base_url, response.status, error_message(data))
    try:
        return [str(entry["id"]) for entry in json.loads(data)["data"]]
    except (ValueError, LookupError, TypeError):
        return []


def checked_base_url(base_url: str) -> str:
    try:
        parts = urlsplit(base_url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, an invalid port
        is_url = False
    if not is_url:
        raise UserError(f"--base-url: {base_url!r} is not a URL; write it as http://host:port/v1")
    return base_url.rstrip("/")


def connector() -> aiohttp.TCPConnector:
    """A connector without a limit, because each turn takes a connection."""
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def unreachable(base_url: str, error: aiohttp.ClientConnectorError) -> Exception:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return UserError(f"--base-url: the host of {base_url} is not known ({error.os_error})")
    return InfrastructureError(
        f"cannot connect to {base_url} ({error.os_error}): is the server running, and the port right?"
    )


def refused_key(base_url: str, status: int, said: str) -> UserError:
    return UserError(
        f"the server at {base_url} refused the key ({status}: {said}): name its variable with --api-key-env"
    )


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream."""
    async for line in stream:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or not data:
            continue
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


def error_message(data: bytes) -> str:
    """The message of a refusal, however its server wraps it."""
    text = data.decode("utf-8", "replace").strip()
    try:
        document = json.loads(text)
    except ValueError:
        return text[:200] or "no reason given"
    if isinstance(document, dict):
        return _said(document.get("error") or document.get("detail") or document.get("message") or text)
    return text[:200]


def _said(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)[:300]
