"""From the requests of one episode to segments that can be trained on. Pure.

A request whose prompt begins with all ids of a segment continues it: what the prompt adds was put there by the program,
what was sampled is the model's. Any other request, after the program cut, edited or branched its conversation, begins a
segment of its own, whose prompt is context and nothing else.

Invariant: the ids up to a turn of a segment are the prompt that the engine saw, then what it sampled. Every request is
one turn of one segment, so each sampled token is trained on once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rstar2.records import StopReason


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was answered."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """What the model sampled, as far as the program got it."""
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
class Segment:
    """Requests that each continue the one before."""

    calls: list[Call] = field(default_factory=list)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.calls[-1].all_ids

    @property
    def appended_ids(self) -> list[tuple[int, ...]]:
        """What the program put behind each turn: nothing behind the last."""
        following = [call.prompt_ids for call in self.calls[1:]]
        pairs = zip(self.calls, following, strict=False)
        return [*(prompt_ids[len(call.all_ids) :] for call, prompt_ids in pairs), ()]


def stitched(calls: Iterable[Call]) -> list[Segment]:
    """The segments of the calls, which are in the order in which they were answered."""
    segments: list[Segment] = []
    for call in calls:
        continued = [segment for segment in segments if _begins_with(call.prompt_ids, segment.token_ids)]
        if continued:
            max(continued, key=lambda segment: len(segment.token_ids)).calls.append(call)
        else:
            segments.append(Segment([call]))
    return segments


def _begins_with(token_ids: Sequence[int], beginning: Sequence[int]) -> bool:
    return len(token_ids) >= len(beginning) and token_ids[: len(beginning)] == beginning
