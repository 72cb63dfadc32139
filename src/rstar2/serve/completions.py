"""`POST /v1/completions` for texts or token ids; with `echo` and `logprobs` it scores the prompt."""

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from rstar2.engine.protocol import TokenScores
from rstar2.errors import UserError
from rstar2.serve.bodies import COMPLETION, CompletionRequest
from rstar2.serve.errors import unsupported
from rstar2.serve.generation import Answer, Ask, Piece, collected
from rstar2.serve.log_probs import CompletionLogProbs, TokenNames, joined, prompt_log_probs, require_all
from rstar2.serve.routing import parsed_body, streamed
from rstar2.serve.service import Event, EventStream, ModelService, Prompt, Usage
from rstar2.serve.sessions import random_name


class CompletionApi:
    def __init__(self, service: ModelService) -> None:
        self._service = service

    async def handle(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        body = await parsed_body(service, request, COMPLETION)
        body.refuse_unsupported()
        self._check(body)
        prompts = [Prompt(ids, body.n or 1) for ids in self._prompt_ids(body)]
        num_sequences = sum(prompt.num_choices for prompt in prompts)
        stream = EventStream(request, service.settings.transfer_timeout_s)
        last: list[Event] = []
        async with streamed(stream), service.begun(request, body.model, num_sequences) as sessions:
            reply = CompletionReply(service, body, prompts)
            if body.max_tokens == 0:
                usage = Usage(sum(len(prompt.token_ids) for prompt in prompts))
                answers = [Answer() for _ in range(num_sequences)]
                scores = await self._scores(body, prompts)
                return web.json_response(reply.full(answers, [() for _ in answers], scores, usage))
            end_ids = service.model.chat.tokenizer.stop_token_ids
            asks = service.asks(prompts, body, body.max_tokens, sessions, end_ids)
            usage = Usage()
            if not body.stream:
                answers = await collected(service.pieces(asks, usage), num_sequences)
                scores = await self._scores(body, prompts)
                tops = [await self._tops(body, ask, answer) for ask, answer in zip(asks, answers, strict=True)]
                return web.json_response(reply.full(answers, tops, scores, usage))
            async with aclosing(service.pieces(asks, usage)) as pieces:
                async for piece in pieces:
                    num_sequences -= piece.finish_reason is not None
                    if num_sequences:
                        await stream.send(reply.event(piece))
                    else:
                        last.append(reply.event(piece))
            if body.wants_usage:
                last.append(reply.usage_event(usage))
        return await stream.end(*last)

    def _check(self, body: CompletionRequest) -> None:
        if body.logprobs is not None or body.return_token_ids or not _is_text(body.prompt):
            self._service.require_exact("prompt" if not _is_text(body.prompt) else "logprobs")
        if body.stream and (body.echo or body.prompt_logprobs is not None or (body.logprobs or 0) > 1):
            raise unsupported("stream", "it goes with neither echo, prompt_logprobs nor logprobs above 1")
        if body.max_tokens == 0 and not body.echo and body.prompt_logprobs is None:
            raise UserError("max_tokens: 0 asks for nothing; set echo or prompt_logprobs, or ask for a token")
        if body.max_tokens == 0 and body.stream:
            raise unsupported("stream", "there is nothing to stream with max_tokens 0")

    def _prompt_ids(self, body: CompletionRequest) -> list[list[int]]:
        prompt: Any = body.prompt
        if not prompt:
            raise UserError("prompt: it is empty; give at least one token")
        if isinstance(prompt, str):
            prompt = [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        if not isinstance(prompt[0], str):
            return list(prompt)
        found = [self._service.prompts.document(text, adds_special_tokens=body.add_special_tokens) for text in prompt]
        if not all(found):
            raise UserError("prompt: one of the texts is empty; give at least one token")
        return found

    async def _scores(self, body: CompletionRequest, prompts: Sequence[Prompt]) -> list[TokenScores | None]:
        """The log-probabilities of the prompts, if requested."""
        wanted = body.prompt_logprobs if body.prompt_logprobs is not None else body.logprobs if body.echo else None
        if wanted is None:
            return [None for _ in prompts]
        num_top, temperature = max(wanted, body.logprobs or 0), body.temperature or 1.0
        return [await self._service.scoring.score(prompt.token_ids, 1, num_top, temperature) for prompt in prompts]

    async def _tops(self, body: CompletionRequest, ask: Ask, answer: Answer) -> Any:
        if not body.logprobs:
            return ()
        ids, temperature = [*ask.token_ids, *answer.token_ids], ask.sampling.temperature or 1.0
        return (await self._service.scoring.score(ids, len(ask.token_ids), body.logprobs, temperature)).top


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], str)


class CompletionReply:
    def __init__(self, service: ModelService, body: CompletionRequest, prompts: Sequence[Prompt]) -> None:
        self._body = body
        self._tokenizer = service.model.chat.tokenizer
        self._names = TokenNames(self._tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._prompts = [prompt for prompt in prompts for _ in range(prompt.num_choices)]
        self._shared = {
            "id": f"cmpl-{random_name()}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or service.model.name,
        }
        self._growing = [CompletionLogProbs(self._names) for _ in self._prompts]
        self._has_begun = [False] * len(self._prompts)

    def full(
        self,
        answers: Sequence[Answer],
        tops: Sequence[Any],
        scores: Sequence[TokenScores | None],
        usage: Usage,
    ) -> dict[str, Any]:
        num_each = self._body.n or 1
        choices = [
            self._choice(index, answer, tops[index], scores[index // num_each]) for index, answer in enumerate(answers)
        ]
        return {**self._shared, "choices": choices, "usage": usage.body}

    def _choice(self, index: int, answer: Answer, tops: Any, scores: TokenScores | None) -> dict[str, Any]:
        body, prompt_ids = self._body, list(self._prompts[index].token_ids)
        text = self._tokenizer.decode(prompt_ids) + answer.text if body.echo else answer.text
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None}
        if body.logprobs is not None:
            require_all(answer.token_ids, answer.log_probs)
            growing = self._growing[index]
            parts = []
            if body.echo:
                assert scores is not None
                top = [None, *(each[: body.logprobs] for each in scores.top)]
                parts.append(growing.add(prompt_ids, [None, *scores.log_probs], top))
            parts.append(growing.add(answer.token_ids, answer.log_probs, tops))
            choice["logprobs"] = joined(parts)
        choice["finish_reason"] = answer.finish_reason
        if body.prompt_logprobs is not None:
            assert scores is not None
            choice["prompt_logprobs"] = prompt_log_probs(self._names, prompt_ids, scores)
        if body.return_token_ids:
            choice |= {"prompt_token_ids": prompt_ids, "token_ids": answer.token_ids}
        return choice

    def event(self, piece: Piece) -> Event:
        choice: dict[str, Any] = {"index": piece.choice, "text": piece.text, "logprobs": None}
        if self._body.logprobs is not None:
            require_all(piece.token_ids, piece.log_probs)
            choice["logprobs"] = self._growing[piece.choice].add(piece.token_ids, piece.log_probs)
        choice["finish_reason"] = piece.finish_reason
        if self._body.return_token_ids:
            choice["token_ids"] = list(piece.token_ids)
            if not self._has_begun[piece.choice]:
                choice["prompt_token_ids"] = list(self._prompts[piece.choice].token_ids)
        self._has_begun[piece.choice] = True
        return {**self._shared, "choices": [choice]}

    def usage_event(self, usage: Usage) -> Event:
        return {**self._shared, "choices": [], "usage": usage.body}
