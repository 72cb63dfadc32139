"""A chat model behind an OpenAI-compatible server: one question, one reply."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from rstar2.engine.protocol import Message
from rstar2.errors import InfrastructureError, UserError

MAX_AT_ONCE = 16
"""Requests in flight: hosted judges refuse more."""


@dataclass(frozen=True, slots=True)
class ChatClient:
    base_url: str
    model: str
    api_key: str | None = None
    deadline_s: float = 600.0
    max_tokens: int = 4096

    async def reply(self, messages: Sequence[Message]) -> str:
        """InfrastructureError for what may pass, UserError for what will not."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        body = {"model": self.model, "messages": list(messages), "temperature": 0.0, "max_tokens": self.max_tokens}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        timeout = aiohttp.ClientTimeout(total=self.deadline_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
                session.post(url, json=body) as response,
            ):
                status, said = response.status, await response.text()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise InfrastructureError(f"the judge at {self.base_url} cannot be reached: {error!r}") from error
        if status in (400, 401, 403, 404):
            raise UserError(f"the judge at {self.base_url} refuses (HTTP {status}): {said[:300]}")
        if status != 200:
            raise InfrastructureError(f"the judge at {self.base_url} answered HTTP {status}")
        try:
            content = json.loads(said)["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InfrastructureError(f"the judge at {self.base_url} sent no chat completion: {error!r}") from error
        if not isinstance(content, str):
            raise InfrastructureError(f"the judge at {self.base_url} sent an empty reply")
        return content
