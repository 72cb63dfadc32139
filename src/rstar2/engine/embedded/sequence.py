"""One turn of one session inside the engine: its ids, how far its keys and values are computed, and where they lie.

Invariant: the last id is never computed ahead of time. Prefill computes all ids but the last; each decode step feeds
the last one and appends what it samples. So sampling happens in one place, and a fully cached prompt needs no prefill.
"""

from dataclasses import dataclass, field

from rstar2.engine.embedded.blocks import NOTHING_OFFERED, Offered
from rstar2.engine.protocol import Sampling
from rstar2.records import StopReason


@dataclass(slots=True, eq=False)
class Sequence:
    token_ids: list[int]
    max_total_tokens: int
    """The turn ends at this length, prompt included."""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_computed: int = 0
    """Leading tokens whose keys and values are in `blocks`, or will be once the planned work has run."""
    slot: int = -1
    """Its row in the runner's tables while it runs, else -1."""
    offered: Offered = NOTHING_OFFERED
    """Of `blocks`, to whoever has the same prefix."""
    cache_epoch: int = -1
    """The cache epoch its keys and values belong to: after a weight update they are nobody else's."""
    num_steps_in_flight: int = 0
    """Decode steps that were planned and whose tokens are not known here yet."""
    num_lost_tokens: int = 0
    """Computed before the last preemption and not yet known to be found again in the cache."""

    @property
    def num_to_prefill(self) -> int:
        return len(self.token_ids) - 1 - self.num_computed

    @property
    def is_running(self) -> bool:
        return self.slot >= 0

    def num_tokens_after(self, num_steps: int) -> int:
        """Tokens with keys and values after so many decode steps beyond those in flight, at most."""
        return min(len(self.token_ids) - 1 + self.num_steps_in_flight + num_steps, self.max_total_tokens - 1)

    @property
    def can_decode(self) -> bool:
        """Its prompt is computed, and the steps in flight do not bring it to its full length."""
        return self.num_to_prefill == 0 and len(self.token_ids) + self.num_steps_in_flight < self.max_total_tokens

    def append(self, token_ids: list[int], num_steps: int) -> None:
        """What `num_steps` steps made, that were in flight until now; fewer tokens if they reached its end."""
        self.num_steps_in_flight -= num_steps
        self.token_ids += token_ids
        if self.is_running:
            self.num_computed = len(self.token_ids) - 1

    def stop_reason(self) -> StopReason | None:
        """None while it goes on."""
        if self.token_ids[-1] in self.sampling.stop_token_ids:
            return StopReason.END_OF_TURN
        return StopReason.TOKEN_LIMIT if self.is_full else None

    @property
    def is_full(self) -> bool:
        return len(self.token_ids) >= self.max_total_tokens
