"""The frames between an engine and its owner elsewhere.

Frames are pickled. Chunks come thousands of times a second, so they are encoded as plain values, which are pickled in
half the time; errors become one of ours, since others may not be picklable. `decode_*` inverts `encode_*`.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rstar2.engine.protocol import Chunk, Sampling
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import StopReason

Frame = dict[str, Any]


_SAMPLING_FIELDS = [field.name for field in fields(Sampling)]


def encode_sampling(sampling: Sampling) -> Frame:
    return {name: getattr(sampling, name) for name in _SAMPLING_FIELDS}


def decode_sampling(frame: Frame) -> Sampling:
    return Sampling(**{**frame, "stop_token_ids": tuple(frame["stop_token_ids"])})


def encode_chunk(chunk: Chunk) -> list[Any]:
    return [chunk.token_ids, chunk.log_probs, chunk.entropies, chunk.stop_reason, chunk.policy_version]


def decode_chunk(values: list[Any]) -> Chunk:
    token_ids, log_probs, entropies, stop_reason, policy_version = values
    reason = None if stop_reason is None else StopReason(stop_reason)
    return Chunk(tuple(token_ids), tuple(log_probs), tuple(entropies), reason, policy_version)


def encode_error(error: BaseException) -> list[str]:
    return ["user" if isinstance(error, UserError) else "infrastructure", str(error)]


def decode_error(values: Sequence[str]) -> UserError | InfrastructureError:
    fault, message = values
    return UserError(message) if fault == "user" else InfrastructureError(message)


def joined(chunks: Sequence[Chunk]) -> list[Chunk]:
    """The same tokens in as few chunks as there are policy versions among them."""
    result: list[Chunk] = []
    for chunk in chunks:
        if result and result[-1].policy_version == chunk.policy_version:
            last = result.pop()
            chunk = Chunk(
                last.token_ids + chunk.token_ids,
                last.log_probs + chunk.log_probs,
                last.entropies + chunk.entropies,
                chunk.stop_reason,
                chunk.policy_version,
            )
        result.append(chunk)
    return result
