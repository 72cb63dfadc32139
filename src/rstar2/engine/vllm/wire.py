"""How a vLLM server is asked for a turn, and what of its answer is taken. Pure.

Every field that decides the distribution is stated: what a request leaves out, vLLM takes from the model's
generation_config.json. Nothing but the caller's own stop tokens ends a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.engine.openai_wire import Reader, TokenWire
from rstar2.engine.protocol import Chunk, Sampling
from rstar2.errors import InfrastructureError, UserError


def check_sampling(sampling: Sampling) -> None:
    if sampling.entropies:
        raise UserError("vLLM does not report entropies: leave sampling.entropies off, or use the embedded engine")


def is_undistorted(sampling: Sampling) -> bool:
    """Whether tokens are drawn from the model's own distribution, or greedily."""
    return sampling.temperature in (0.0, 1.0) and sampling.top_p == 1.0 and sampling.top_k == 0


@dataclass(frozen=True, slots=True)
class VllmWire(TokenWire):
    tells_drawn: bool = False
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
            "logprobs": 0 if self.tells_drawn or is_undistorted(sampling) else None,
        }

    def reader(self, token_ids: Sequence[int], max_tokens: int) -> Reader:
        return _Reader(TokenWire.reader(self, token_ids, max_tokens))


@dataclass(frozen=True, slots=True)
class _Reader:
    tokens: Reader

    def read(self, choice: Mapping[str, Any]) -> Chunk:
        if choice.get("finish_reason") == "error":
            raise InfrastructureError("vLLM ended a request with an error of its own: its log says more")
        return self.tokens.read(choice)
