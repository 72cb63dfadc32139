"""`POST /v1/chat/completions`."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from rstar2.serve.bodies import CHAT, ChatRequest
from rstar2.serve.chat_text import ChatText, message_of
from rstar2.serve.errors import OpenAIError, unsupported
from rstar2.serve.generation import Answer, Ask, Piece, collected
from rstar2.serve.log_probs import TokenNames, Top, chat_content
from rstar2.serve.prompts import ChatPrompt
from rstar2.serve.routing import parsed_body, streamed
from rstar2.serve.service import Event, EventStream, ModelService, Prompt, Usage
from rstar2.serve.sessions import random_name


class ChatApi:
    def __init__(self, service: ModelService) -> None:
        self._service = service

    async def handle(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        body = await parsed_body(service, request, CHAT)
        body.refuse_unsupported()
        if body.logprobs or body.return_token_ids:
            service.require_exact("logprobs" if body.logprobs else "return_token_ids")
        if body.top_logprobs and not body.logprobs:
            raise OpenAIError(400, "top_logprobs: set logprobs to true as well", param="top_logprobs")
        if body.stream and body.top_logprobs:
            raise unsupported("top_logprobs", "it is not available in a stream; leave out one of them")
        num_choices = body.n or 1
        prompt = service.prompts.write(body)
        stream = EventStream(request, service.settings.transfer_timeout_s)
        last: list[Event] = []
        async with streamed(stream), service.begun(request, body.model, num_choices) as sessions:
            reply = ChatReply(service, body, prompt)
            asks = service.asks(
                [Prompt(prompt.token_ids, num_choices)],
                body,
                body.max_completion_tokens or body.max_tokens,
                sessions,
                service.model.chat.stop_token_ids,
            )
            usage = Usage()
            if not body.stream:
                answers = await collected(service.pieces(asks, usage), num_choices)
                tops = await self._tops(body, asks, answers)
                return web.json_response(reply.full(answers, tops, usage))
            async with aclosing(service.pieces(asks, usage)) as pieces:
                async for piece in pieces:
                    num_choices -= piece.finish_reason is not None
                    if num_choices:
                        await stream.send(*reply.events(piece))
                    else:
                        last += reply.events(piece)
            if body.wants_usage:
                last.append(reply.usage_event(usage))
        return await stream.end(*last)

    async def _tops(self, body: ChatRequest, asks: Sequence[Ask], answers: Sequence[Answer]) -> list[Sequence[Top]]:
        """The likeliest ids at each position of each answer, scored by another pass over the full sequence."""
        if not body.top_logprobs:
            return [() for _ in answers]
        found: list[Sequence[Top]] = []
        for ask, answer in zip(asks, answers, strict=True):
            ids, temperature = [*ask.token_ids, *answer.token_ids], ask.sampling.temperature or 1.0
            scores = await self._service.scoring.score(ids, len(ask.token_ids), body.top_logprobs, temperature)
            found.append(scores.top)
        return found


class ChatReply:
    """The answer to one request, in full or as events."""

    def __init__(self, service: ModelService, body: ChatRequest, prompt: ChatPrompt) -> None:
        self._body = body
        self._prompt = prompt
        self._names = TokenNames(service.model.chat.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._shared = {
            "id": f"chatcmpl-{random_name()}",
            "created": int(time.time()),
            "model": body.model or service.model.name,
        }
        self._texts = [self._reader() for _ in range(body.n or 1)]
        self._has_begun = [False] * len(self._texts)

    def _reader(self) -> ChatText:
        return ChatText.of(self._body, is_reasoning=self._prompt.is_reasoning, opening=self._prompt.opening)

    def full(self, answers: Sequence[Answer], tops: Sequence[Sequence[Top]], usage: Usage) -> dict[str, Any]:
        choices = []
        for index, (answer, top, text) in enumerate(zip(answers, tops, self._texts, strict=True)):
            deltas = [*text.feed(answer.text), *text.finish()]
            choice: dict[str, Any] = {
                "index": index,
                "message": message_of(deltas),
                "logprobs": self._log_probs(answer.token_ids, answer.log_probs, top),
                "finish_reason": _finish_reason(answer.finish_reason, text),
            }
            if self._body.return_token_ids:
                choice["token_ids"] = answer.token_ids
            choices.append(choice)
        document = {**self._shared, "object": "chat.completion", "choices": choices, "usage": usage.body}
        if self._body.return_token_ids:
            document["prompt_token_ids"] = self._prompt.token_ids
        return document

    def events(self, piece: Piece) -> list[Event]:
        """The events of one piece. A choice's first event names the role."""
        text = self._texts[piece.choice]
        deltas = text.feed(piece.text)
        if piece.finish_reason is not None:
            deltas += text.finish()
        documents: list[dict[str, Any]] = []
        if not self._has_begun[piece.choice]:
            self._has_begun[piece.choice] = True
            first = self._document(piece.choice, {"role": "assistant", "content": ""})
            if self._body.return_token_ids:
                first["prompt_token_ids"] = self._prompt.token_ids
            documents.append(first)
        documents += [self._document(piece.choice, delta) for delta in deltas]
        has_more = self._body.logprobs or self._body.return_token_ids
        if (has_more and not deltas) or piece.finish_reason is not None:
            documents.append(self._document(piece.choice, {}))
        if has_more and piece.token_ids:
            carrier = documents[-1]["choices"][0]
            if self._body.logprobs:
                carrier["logprobs"] = self._log_probs(piece.token_ids, piece.log_probs)
            if self._body.return_token_ids:
                carrier["token_ids"] = list(piece.token_ids)
        if piece.finish_reason is not None:
            documents[-1]["choices"][0]["finish_reason"] = _finish_reason(piece.finish_reason, text)
        return list(documents)

    def usage_event(self, usage: Usage) -> Event:
        return {**self._shared, "object": "chat.completion.chunk", "choices": [], "usage": usage.body}

    def _document(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._shared, "object": "chat.completion.chunk", "choices": [choice]}

    def _log_probs(
        self, token_ids: Sequence[int], log_probs: Sequence[float], tops: Sequence[Top] = ()
    ) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {"content": chat_content(self._names, token_ids, log_probs, tops), "refusal": None}


def _finish_reason(reason: str, text: ChatText) -> str:
    return "tool_calls" if text.has_calls and reason == "stop" else reason
