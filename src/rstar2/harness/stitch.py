"""Joins the requests of one episode into segments for training. Pure.

A request whose prompt begins with all ids of a segment continues the segment: the program appended the prompt's other
ids, and the model sampled the answer. Any other request, after the program cut, edited or branched its conversation,
begins a new segment, whose prompt is only context.

Invariant: the ids of a segment up to and including a turn are the engine's prompt, then its samples. Every request is
one turn of one segment, so each sampled token is trained on once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rstar2.records import StopReason


@dataclass(frozen=True, slots=True)
class Call:
    """One answered request."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The sampled ids that the program got."""
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...] = ()
    stop_reason: StopReason = StopReason.END_OF_TURN
    policy_version: int = 0
    queue_s: float = 0.0
    generate_s: float = 0.0

    @property
    def all_ids(self) -> tuple[int, ...]:
        return self.prompt_ids + self.token_ids


@dataclass(slots=True)
class CallChain:
    """Requests of which each continues the previous one."""

    calls: list[Call] = field(default_factory=list)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.calls[-1].all_ids

    @property
    def appended_ids(self) -> list[tuple[int, ...]]:
        """The ids that the program appended after each turn; none after the last."""
        following = [call.prompt_ids for call in self.calls[1:]]
        pairs = zip(self.calls, following, strict=False)
        return [*(prompt_ids[len(call.all_ids) :] for call, prompt_ids in pairs), ()]


def stitched(calls: Iterable[Call]) -> list[CallChain]:
    """The segments of the calls, which must be in the order of their answers."""
    segments: list[CallChain] = []
    for call in calls:
        continued = [segment for segment in segments if _begins_with(call.prompt_ids, segment.token_ids)]
        if continued:
            max(continued, key=lambda segment: len(segment.token_ids)).calls.append(call)
        else:
            segments.append(CallChain([call]))
    return segments


def _begins_with(token_ids: Sequence[int], beginning: Sequence[int]) -> bool:
    return len(token_ids) >= len(beginning) and token_ids[: len(beginning)] == beginning
