"""`POST /inference/v1/generate`, vLLM's route: token ids in, token ids and log-probabilities out."""

from typing import Any

from aiohttp import web

from rstar2.serve.bodies import GENERATE
from rstar2.serve.errors import unsupported
from rstar2.serve.generation import collected
from rstar2.serve.log_probs import TokenNames, Top, chat_content
from rstar2.serve.routing import parsed_body
from rstar2.serve.service import ModelService, Prompt, Usage
from rstar2.serve.sessions import random_name


class GenerateApi:
    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._names = TokenNames(service.model.chat.tokenizer, as_ids=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        service = self._service
        body = await parsed_body(service, request, GENERATE)
        body.refuse_unsupported()
        body.sampling_params.refuse_unsupported()
        if body.stream:
            raise unsupported("stream", "this route answers at once; use /v1/completions to stream")
        service.require_exact("token_ids")
        fields, num_choices = body.sampling_params, body.sampling_params.n or 1
        async with service.begun(request, body.model, num_choices) as sessions:
            end_ids = service.model.chat.tokenizer.stop_token_ids
            prompts = [Prompt(body.token_ids, num_choices)]
            asks = service.asks(prompts, fields, fields.max_tokens, sessions, end_ids)
            usage = Usage()
            answers = await collected(service.pieces(asks, usage, has_text=False), num_choices)
            choices = []
            for index, (ask, answer) in enumerate(zip(asks, answers, strict=True)):
                tops: tuple[Top, ...] = ()
                if (fields.logprobs or 0) > 1:
                    ids, temperature = [*ask.token_ids, *answer.token_ids], ask.sampling.temperature or 1.0
                    scores = await service.scoring.score(ids, len(ask.token_ids), fields.logprobs or 0, temperature)
                    tops = scores.top
                choice: dict[str, Any] = {
                    "index": index,
                    "token_ids": answer.token_ids,
                    "logprobs": None,
                    "finish_reason": answer.finish_reason,
                }
                if fields.logprobs is not None:
                    content = chat_content(self._names, answer.token_ids, answer.log_probs, tops)
                    choice["logprobs"] = {"content": content}
                choices.append(choice)
        return web.json_response(
            {"request_id": body.request_id or random_name(), "choices": choices, "usage": usage.body}
        )
