"""The two ways to ask an OpenAI-compatible server for a turn, as request bodies and as readers of its events. Pure.

`TokenWire`: /completions with token ids in and out, as vLLM has them; the tokenizer is the model's own, and the ids
that come back are the ids that were sampled. `TextWire`: /chat/completions with text, as every server has it; the ids
are those of a stand-in tokenizer, and the server's own stay unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rstar2.engine.plain_text import END_ID, PlainTextTokenizer
from rstar2.engine.protocol import Chunk, Sampling
from rstar2.errors import UserError
from rstar2.records import StopReason

STOP_REASONS = {"stop": StopReason.END_OF_TURN, "length": StopReason.TOKEN_LIMIT, "abort": StopReason.CANCELLED}


class Reader(Protocol):
    """Reads one turn."""

    def read(self, choice: Mapping[str, Any]) -> Chunk:
        """The chunk that one event of the stream carries."""
        ...


class WireFormat(Protocol):
    @property
    def path(self) -> str: ...

    def body(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> dict[str, Any]: ...

    def reader(self, token_ids: Sequence[int], max_tokens: int) -> Reader: ...


def _common(sampling: Sampling, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": True, "temperature": sampling.temperature, "max_tokens": max_tokens}
    if sampling.top_p != 1.0:
        body["top_p"] = sampling.top_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    return body


@dataclass(frozen=True, slots=True)
class TokenWire:
    path: str = "/completions"

    def body(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        body = _common(sampling, max_tokens) | {
            "prompt": list(token_ids),
            "return_token_ids": True,
            "logprobs": 1,
            "stop_token_ids": list(sampling.stop_token_ids),
            "skip_special_tokens": False,
        }
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        return body

    def reader(self, token_ids: Sequence[int], max_tokens: int) -> Reader:  # noqa: ARG002
        return _TokenReader()


class _TokenReader:
    def read(self, choice: Mapping[str, Any]) -> Chunk:
        ids = choice.get("token_ids")
        if ids is None and choice.get("text"):
            raise UserError(
                "the server answers in text and not in token ids, so a tokenizer is of no use with it: "
                "leave --tokenizer out"
            )
        ids = tuple(ids or ())
        log_probs = tuple((choice.get("logprobs") or {}).get("token_logprobs") or ())
        complete = len(log_probs) == len(ids) and None not in log_probs
        return Chunk(ids, log_probs if complete else (), stop_reason=_stop_reason(choice))


@dataclass(frozen=True, slots=True)
class TextWire:
    tokenizer: PlainTextTokenizer = field(default_factory=PlainTextTokenizer)
    path: str = "/chat/completions"

    def body(self, token_ids: Sequence[int], sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        messages, _ = self.tokenizer.messages_of(token_ids)
        return _common(sampling, max_tokens) | {"messages": messages}

    def reader(self, token_ids: Sequence[int], max_tokens: int) -> Reader:
        return _TextReader(self.tokenizer, self.tokenizer.messages_of(token_ids)[1], max_tokens)


class _TextReader:
    """Reads one turn of a chat server. Such a server cannot be given the opening of its turn; if its answer repeats the
    opening, it is dropped, because the prompt has it already."""

    def __init__(self, tokenizer: PlainTextTokenizer, opening: str, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._opening = opening
        self._held: str | None = ""
        self._num_left = max_tokens

    def read(self, choice: Mapping[str, Any]) -> Chunk:
        stop_reason = _stop_reason(choice)
        text = self._without_opening((choice.get("delta") or {}).get("content") or "", is_last=stop_reason is not None)
        ids = self._tokenizer.encode_content(text)
        if stop_reason is StopReason.END_OF_TURN:
            ids.append(END_ID)
        if len(ids) > self._num_left:
            # The server counts its own tokens; the budget is counted in the stand-in's.
            ids, stop_reason = ids[: self._num_left], StopReason.TOKEN_LIMIT
        self._num_left -= len(ids)
        return Chunk(tuple(ids), (), stop_reason=stop_reason)

    def _without_opening(self, text: str, *, is_last: bool) -> str:
        if self._held is None:
            return text
        self._held += text
        start = self._held.lstrip()
        if not is_last and len(start) < len(self._opening) and self._opening.startswith(start):
            return ""
        held, self._held = self._held, None
        return start.removeprefix(self._opening) if start.startswith(self._opening) else held


def _stop_reason(choice: Mapping[str, Any]) -> StopReason | None:
    reason = choice.get("finish_reason")
    return None if reason is None else STOP_REASONS.get(reason, StopReason.END_OF_TURN)
