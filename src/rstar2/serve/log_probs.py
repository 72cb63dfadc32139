"""Log-probabilities in the forms of chat completions, text completions and vLLM's prompt log-probabilities."""

from collections.abc import Sequence
from typing import Any

from rstar2.engine.protocol import Tokenizer, TokenScores
from rstar2.serve.errors import unsupported

LEAST = -9999.0
"""JSON has no minus infinity; vLLM uses this value."""


class TokenNames:
    """The names of tokens in answers: their text, or `token_id:N`."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def of(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._tokenizer.decode([token_id])


Top = Sequence[tuple[int, float]]


def require_all(token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
    """Raise ApiError if the engine reported no log-probabilities."""
    if len(log_probs) != len(token_ids):
        raise unsupported("logprobs", "the engine of this server reports no log-probabilities")


def chat_content(
    names: TokenNames, token_ids: Sequence[int], log_probs: Sequence[float], tops: Sequence[Top] = ()
) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat choice; `tops` has the likeliest ids of each position, or is empty."""
    require_all(token_ids, log_probs)
    entries = []
    for at, (token_id, log_prob) in enumerate(zip(token_ids, log_probs, strict=True)):
        top = with_drawn(tops[at], token_id, log_prob) if tops else ()
        entries.append(_entry(names, token_id, log_prob) | {"top_logprobs": [_entry(names, *each) for each in top]})
    return entries


def _entry(names: TokenNames, token_id: int, log_prob: float) -> dict[str, Any]:
    name = names.of(token_id)
    return {"token": name, "logprob": max(log_prob, LEAST), "bytes": list(name.encode())}


def with_drawn(top: Top, token_id: int, log_prob: float) -> list[tuple[int, float]]:
    """The likeliest ids, with the sampled id's log-probability replaced by the one that it was sampled with."""
    return [(each, log_prob if each == token_id else value) for each, value in top]


class CompletionLogProbs:
    """Builds the `logprobs` of a completion choice as its tokens arrive."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._offset = 0

    def add(
        self, token_ids: Sequence[int], log_probs: Sequence[float | None], tops: Sequence[Top | None] = ()
    ) -> dict[str, Any]:
        """Add tokens; returns their entries. The sampled token is among the likeliest of its position, or follows
        them."""
        tokens = [self._names.of(token_id) for token_id in token_ids]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        likeliest: list[dict[str, float] | None] = []
        for at, (token_id, log_prob) in enumerate(zip(token_ids, log_probs, strict=True)):
            if log_prob is None:
                likeliest.append(None)
                continue
            top = with_drawn((tops[at] if tops else None) or (), token_id, log_prob)
            pairs = [*top, *([] if any(each == token_id for each, _ in top) else [(token_id, log_prob)])]
            likeliest.append({self._names.of(each): max(value, LEAST) for each, value in pairs})
        values = [None if value is None else max(value, LEAST) for value in log_probs]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": likeliest, "text_offset": offsets}


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Concatenate several results of `add`."""
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}


def prompt_log_probs(names: TokenNames, token_ids: Sequence[int], scores: TokenScores) -> list[Any]:
    """vLLM's form: for each token but the first an object by id, with rank and text."""
    entries: list[Any] = [None]
    for token_id, log_prob, rank, top in zip(token_ids[1:], scores.log_probs, scores.ranks, scores.top, strict=True):
        ranked = {each: (value, number) for number, (each, value) in enumerate(top, start=1)}
        ranked.setdefault(token_id, (log_prob, rank))
        entries.append(
            {
                str(each): {"logprob": max(value, LEAST), "rank": number, "decoded_token": names.of(each)}
                for each, (value, number) in ranked.items()
            }
        )
    return entries
