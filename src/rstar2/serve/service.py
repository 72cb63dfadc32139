"""The state and functions that all routes share: admission, weights, sessions, generation and counting."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from rstar2.engine.protocol import Sampling, ScoringEngine
from rstar2.errors import UserError
from rstar2.sandbox.http.connections import Connections
from rstar2.serve.admission import Admission
from rstar2.serve.bodies import SamplingFields
from rstar2.serve.errors import OpenAIError, unsupported
from rstar2.serve.generation import Ask, Piece, merged, with_seed_of
from rstar2.serve.metrics import ServeMetrics
from rstar2.serve.prompts import PromptWriter
from rstar2.serve.served_model import ServedModel
from rstar2.serve.sessions import HEADER, Sessions
from rstar2.serve.settings import ServeSettings
from rstar2.serve.weights import BASE, WeightGate

Event = Mapping[str, Any]
"""One event of a stream, as it is written in JSON."""
UNKNOWN_CONTEXT_TOKENS = 4096
"""The maximum length of an answer if neither the caller nor the engine sets a limit."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a request, and how many choices the caller wants."""

    token_ids: Sequence[int]
    num_choices: int = 1


@dataclass(slots=True)
class Usage:
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0

    @property
    def body(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_generated_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_generated_tokens,
        }


class ModelService:
    def __init__(self, model: ServedModel, settings: ServeSettings) -> None:
        self.model = model
        self.settings = settings
        self.prompts = PromptWriter(model.chat)
        self.admission = Admission(settings)
        self.sessions = Sessions(model.engine, settings.max_sessions, settings.session_idle_s)
        self.gate = WeightGate(model.engine)
        self.metrics = ServeMetrics(model.name)
        self.started = int(time.time())
        self._control_ids = model.control_ids()
        self._running: set[str] = set()
        """The engine sessions that are generating."""
        self.connections: Connections | None = None
        """The open connections; the server sets this when it starts."""

    def is_beyond_bound(self, transport: asyncio.BaseTransport | None) -> bool:
        return self.connections is not None and self.connections.is_spare(transport)

    @property
    def idle(self) -> asyncio.Event:
        return self.admission.idle

    def begin_draining(self) -> None:
        self.admission.is_draining = True

    @property
    def scoring(self) -> ScoringEngine:
        if self.model.scoring is None:
            raise unsupported("logprobs", "the engine of this server cannot score given tokens")
        return self.model.scoring

    def weights_named(self, model: str | None) -> str:
        """The weights that a request names. OpenAIError if there are none with this name."""
        if model is None or model == self.model.name:
            return BASE
        if model in self.gate.adapters:
            return model
        names = ", ".join([self.model.name, *self.gate.adapters])
        message = f"model: there is no {model!r} here; there is {names}"
        raise OpenAIError(404, message, param="model", code="model_not_found")

    @asynccontextmanager
    async def begun(self, request: web.Request, model: str | None, num_sequences: int) -> AsyncIterator[list[str]]:
        """Admit a request and lease its weights for the duration of the block; yields the engine sessions of its
        sequences. TimeoutError when its time is up."""
        weights = self.weights_named(model)
        name, authorization = request.headers.get(HEADER), request.headers.get("Authorization", "")
        with self.admission.admitted(num_sequences):
            async with asyncio.timeout(self.settings.request_timeout_s):
                async with (
                    self.gate.leased(weights),
                    self.sessions.opened(name, authorization, num_sequences) as sessions,
                ):
                    yield sessions

    def asks(
        self,
        prompts: Sequence[Prompt],
        fields: SamplingFields,
        max_tokens: int | None,
        sessions: Sequence[str],
        end_ids: Sequence[int],
    ) -> list[Ask]:
        """The sequences of a request: all choices of the first prompt, then those of the next."""
        stop_ids = [*([] if fields.ignore_eos else end_ids), *(fields.stop_token_ids or ())]
        sampling = Sampling(
            temperature=1.0 if fields.temperature is None else fields.temperature,
            top_p=1.0 if fields.top_p is None else fields.top_p,
            top_k=max(fields.top_k or 0, 0),
            seed=fields.seed,
            stop_token_ids=tuple(dict.fromkeys(stop_ids)),
        )
        hidden_ids = self._control_ids if fields.skip_special_tokens else frozenset()
        names = iter(sessions)
        return [
            Ask(
                token_ids=prompt.token_ids,
                sampling=with_seed_of(sampling, choice),
                max_tokens=self.room_for(len(prompt.token_ids), max_tokens),
                session=next(names),
                stops=fields.stops,
                keeps_stop=fields.include_stop_str_in_output,
                hidden_ids=hidden_ids,
            )
            for prompt in prompts
            for choice in range(prompt.num_choices)
        ]

    def room_for(self, num_prompt_tokens: int, asked: int | None) -> int:
        """How many tokens may follow the prompt. OpenAIError if it does not fit, or `asked` is too many."""
        bound, context = self.settings.max_tokens, self.model.max_model_len
        if context is not None and num_prompt_tokens >= context:
            message = f"the prompt has {num_prompt_tokens} tokens, and the context holds {context}: shorten it"
            raise OpenAIError(400, message, param="prompt", code="context_length_exceeded")
        if bound is not None and asked is not None and asked > bound:
            raise OpenAIError(
                400, f"max_tokens: at most {bound} tokens are allowed here, not {asked}", param="max_tokens"
            )
        left = UNKNOWN_CONTEXT_TOKENS if context is None else context - num_prompt_tokens
        if asked is not None and context is None:
            left = asked
        return min(limit for limit in (left, bound, asked) if limit is not None)

    async def pieces(self, asks: Sequence[Ask], usage: Usage, *, has_text: bool = True) -> AsyncGenerator[Piece]:
        """Yield the pieces of all choices, and count them."""
        started = time.perf_counter()
        last = [started] * len(asks)
        self._running.update(ask.session for ask in asks)
        usage.num_prompt_tokens += sum({id(ask.token_ids): len(ask.token_ids) for ask in asks}.values())
        self.metrics.num_prompt_tokens += sum(len(ask.token_ids) for ask in asks)
        tokenizer = self.model.chat.tokenizer
        try:
            async with aclosing(merged(self.model.engine, tokenizer, asks, has_text=has_text)) as pieces:
                async for piece in pieces:
                    self._count(piece, last, started)
                    usage.num_generated_tokens += len(piece.token_ids)
                    yield piece
        finally:
            self._running.difference_update(ask.session for ask in asks)

    def _count(self, piece: Piece, last: list[float], started: float) -> None:
        metrics, now, num_tokens = self.metrics, time.perf_counter(), len(piece.token_ids)
        metrics.num_generated_tokens += num_tokens
        if num_tokens and last[piece.choice] == started:
            metrics.first_token.observe(now - started)
        elif num_tokens:
            metrics.between_tokens.observe((now - last[piece.choice]) / num_tokens, num_tokens)
        if num_tokens:
            last[piece.choice] = now
        if piece.finish_reason is not None:
            metrics.finished[piece.finish_reason] += 1
            metrics.full_request.observe(now - started)

    async def cancel_all(self) -> None:
        """End every running choice with the reason `abort`."""
        for session in list(self._running):
            await self.model.engine.cancel(session)

    def require_exact(self, field: str) -> None:
        """Refuse a field that needs the model's own token ids if the server behind this one speaks only text."""
        if not self.model.is_exact:
            raise unsupported(field, "the server behind this one speaks text; start with --tokenizer for token ids")


async def read_body(request: web.Request, timeout_s: float) -> bytes:
    """Read the request's body; OpenAIError if it is late."""
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise OpenAIError(408, f"the body did not arrive within {timeout_s:g} s") from None
    except web.RequestPayloadError as error:
        raise UserError(f"the body cannot be read: {error}") from None


@dataclass(slots=True)
class EventStream:
    """An answer as server-sent events. Nothing is sent before the first event, so an earlier failure has its own
    status."""

    request: web.Request
    timeout_s: float
    _response: web.StreamResponse | None = field(default=None, init=False)

    @property
    def has_begun(self) -> bool:
        return self._response is not None

    async def send(self, *events: Event) -> None:
        """Send some events at once; ConnectionError if the caller does not read in time."""
        if not events:
            return
        async with self._open_response() as response:
            await response.write(_framed(events))

    async def end(self, *events: Event) -> web.StreamResponse:
        """Send the last events and the end of the answer at once."""
        async with self._open_response() as response:
            await response.write_eof(_framed(events) + b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def _open_response(self) -> AsyncIterator[web.StreamResponse]:
        try:
            async with asyncio.timeout(self.timeout_s):
                if self._response is None:
                    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
                    self._response = _EventResponse(headers=headers)
                    await self._response.prepare(self.request)
                yield self._response
        except TimeoutError:
            if self.request.transport is not None:
                self.request.transport.abort()
            raise ConnectionResetError("the caller does not read its answer") from None


class _EventResponse(web.StreamResponse):
    """Its headers go out with the first event: a system call costs as much as the rest of an event."""

    _send_headers_immediately = False


def _framed(events: Sequence[Event]) -> bytes:
    return b"".join(b"data: " + to_json(event) + b"\n\n" for event in events)
