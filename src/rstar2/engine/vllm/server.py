"""vLLM at an address: `vllm serve`, asked in token ids through its completions route.

A request states every field that decides the distribution: vLLM takes missing ones from the model's
generation_config.json. Only the caller's stop tokens and limits end a turn.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rstar2.engine.openai import OpenAIEngine, checked_base_url
from rstar2.engine.openai_wire import Reader, TokenWire
from rstar2.engine.protocol import Chunk, EngineLoad, Sampling
from rstar2.engine.vllm.base import VllmEngine
from rstar2.engine.vllm.control import VllmControl
from rstar2.engine.vllm.metrics import load_of
from rstar2.errors import InfrastructureError, UserError


def is_unmodified(sampling: Sampling) -> bool:
    """Whether tokens are drawn from the model's own distribution, or greedily."""
    return sampling.temperature in (0.0, 1.0) and sampling.top_p == 1.0 and sampling.top_k == 0


@dataclass(frozen=True, slots=True)
class VllmWire(TokenWire):
    reports_sampled: bool = False
    """Whether the server's log-probabilities are those of the distribution it draws from
    (`--logprobs-mode processed_logprobs`) or, as by default, of the model's own. The latter are dropped where they
    differ."""

    def body(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        return TokenWire.body(self, token_ids, sampling, max_tokens) | {
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": True,
            "logprobs": 0 if self.reports_sampled or is_unmodified(sampling) else None,
        }

    def reader(self, token_ids: Sequence[int], max_tokens: int) -> Reader:
        return _Reader(TokenWire.reader(self, token_ids, max_tokens))


@dataclass(frozen=True, slots=True)
class _Reader:
    tokens: Reader

    def read(self, choice: Mapping[str, Any]) -> Chunk:
        if choice.get("finish_reason") == "error":
            raise InfrastructureError("vLLM ended a request with an internal error: its log says more")
        return self.tokens.read(choice)


PERIOD_S = 0.25
"""Seconds between two reads of the metrics. Writing the page costs vLLM milliseconds."""
STALE_S = 10.0
"""A server that has not served its metrics for this long is lost. They come within milliseconds, even while weights
load, but a machine may be busy."""


class VllmServerEngine(VllmEngine):
    """vLLM at an address, made by `connect`. Leaving a request closes its connection, which makes vLLM drop it."""

    def __init__(
        self,
        completions: OpenAIEngine,
        control: VllmControl,
        load: EngineLoad,
        max_context_tokens: int,
        scratch: Path | None,
    ) -> None:
        super().__init__(control, max_context_tokens, scratch)
        self._completions = completions
        self._server = control
        self._load = load
        self._seen_s = time.monotonic()
        self._lost: InfrastructureError | None = None
        self._watcher = asyncio.create_task(self._watch())

    @classmethod
    async def connect(
        cls, base_url: str, model: str, api_key: str | None = None, *, scratch: Path | None = None
    ) -> Self:
        """Connects to the server at `base_url`, with or without its /v1. `scratch` is a folder that this process and
        the server share, for weights in transit; needed if the server is on another machine."""
        root = root_of(base_url)
        control = VllmControl(root, api_key)
        try:
            load = load_of(await control.metrics())
            max_context_tokens = _context_tokens(await control.models(), model, root)
            reports_sampled = await _reports_drawn(
                OpenAIEngine(f"{root}/v1", model, VllmWire(reports_sampled=True), api_key)
            )
        except BaseException:
            await control.close()
            raise
        completions = OpenAIEngine(f"{root}/v1", model, VllmWire(reports_sampled=reports_sampled), api_key)
        return cls(completions, control, load, max_context_tokens, scratch)

    def load(self) -> EngineLoad:
        """The load at most `PERIOD_S` ago, as long as the server answers."""
        if self._lost is not None:
            raise self._lost
        return self._load

    async def close(self) -> None:
        self._watcher.cancel()
        with suppress(asyncio.CancelledError):
            await self._watcher
        await self._completions.close()
        await self._server.close()

    def _chunks(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[Chunk]:
        return self._completions.generate(session, token_ids, sampling, max_tokens)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                self._load = load_of(await self._server.metrics())
            except (InfrastructureError, UserError) as error:
                if time.monotonic() - self._seen_s > STALE_S:
                    self._lost = InfrastructureError(f"vLLM has shown no metrics for {STALE_S:g} s: {error}")
            else:
                self._seen_s, self._lost = time.monotonic(), None


def root_of(base_url: str) -> str:
    """The address without the /v1 that users write, or do not write, at its end."""
    return checked_base_url(base_url).removesuffix("/v1")


def _context_tokens(models: list[dict[str, Any]], model: str, root: str) -> int:
    for entry in models:
        if entry["id"] == model and isinstance(entry.get("max_model_len"), int):
            return int(entry["max_model_len"])
    names = ", ".join(str(entry["id"]) for entry in models)
    raise UserError(f"the vLLM at {root} has no model {model!r} (it has {names}): choose one with --model")


async def _reports_drawn(engine: OpenAIEngine) -> bool:
    """Whether the server reports log-probabilities of the distribution it draws from. It draws one token with `top_k`
    1, whose log-probability is 0 in that distribution, and less in the model's own."""
    try:
        async with aclosing(engine.generate("probe", [0], Sampling(top_k=1), 1)) as chunks:
            return [value async for chunk in chunks for value in chunk.log_probs] == [0.0]
    finally:
        await engine.close()
