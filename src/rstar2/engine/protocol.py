"""The interfaces of engines and tokenizers: ids in, ids and log-probabilities out.

A session is one rollout. After each tool call it sends a longer prompt that starts with what the engine has already
seen, so an engine may keep its cache between turns. `release` ends the session.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from rstar2.records import StopReason

if TYPE_CHECKING:
    from torch import Tensor

    from rstar2.config import Recipe


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Log-probabilities and entropies are those of the distribution it is drawn from."""

    temperature: float = 1.0
    """0 means greedy; log-probabilities are then those of temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    """0 turns it off."""
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    """Each of them ends the turn and is its last token."""
    entropies: bool = False

    @classmethod
    def of(cls, recipe: "Recipe") -> Self:
        """How training samples rollouts."""
        return cls(temperature=recipe.rollout.temperature, entropies=recipe.engine.kind == "embedded")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some tokens of a turn, in order. The last chunk of a turn, and no other, has a stop reason."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    entropies: tuple[float, ...] = ()
    stop_reason: StopReason | None = None
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The state of an engine's cache and queues; the counters only grow."""

    block_size: int
    num_blocks: int
    num_free_blocks: int
    """Blocks that are free at once, or after dropping cached blocks that no running session uses."""
    num_cached_blocks: int
    num_running: int
    num_waiting: int
    num_preemptions: int
    num_recomputed_tokens: int
    num_prefill_tokens: int
    num_generated_tokens: int

    @classmethod
    def with_unknown_cache(cls, num_running: int, num_prefill_tokens: int, num_generated_tokens: int) -> Self:
        """The load of an engine whose cache and queues cannot be seen."""
        return cls(
            block_size=1,
            num_blocks=0,
            num_free_blocks=0,
            num_cached_blocks=0,
            num_running=num_running,
            num_waiting=0,
            num_preemptions=0,
            num_recomputed_tokens=0,
            num_prefill_tokens=num_prefill_tokens,
            num_generated_tokens=num_generated_tokens,
        )


class Engine(Protocol):
    def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        """Continue `token_ids` by at most `max_tokens`. Leaving the iterator early cancels.
        InfrastructureError if the engine is lost; UserError for what can never work (a prompt beyond the context)."""
        ...

    def load(self) -> EngineLoad: ...

    async def cancel(self, session: str) -> None:
        """End the session's running turn, if any; its iterator ends with the reason `cancelled`."""
        ...

    async def release(self, session: str) -> None:
        """The session is over: its cache may be dropped."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class PushingEngine(Protocol):
    """An engine that can also be used without a task for each turn, for servers of thousands of turns."""

    def begin(
        self,
        session: str,
        token_ids: Sequence[int],
        sampling: Sampling,
        max_tokens: int,
        give: Callable[[Chunk | BaseException], None],
    ) -> Callable[[], None]:
        """Like `generate`, but passes each chunk to `give`, in the event loop of the caller; if the engine is lost, it
        passes an InfrastructureError instead of the last chunk. Calling the returned function cancels the turn."""
        ...

    def forget(self, session: str) -> None:
        """`release` for a caller that cannot wait."""
        ...


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The model's log-probabilities of given tokens, one entry for each token."""

    log_probs: tuple[float, ...]
    ranks: tuple[int, ...]
    """The rank of each token among all ids by likelihood: 1 for the likeliest."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The likeliest ids at each position with their log-probabilities, the likeliest first."""


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can score given tokens by their log-probabilities."""

    async def score(self, token_ids: Sequence[int], start: int, num_top: int, temperature: float = 1.0) -> TokenScores:
        """The log-probabilities of `token_ids[start:]`, each after the ids before it, and the `num_top` likeliest ids
        at each of these positions. `start` is at least 1: nothing is known of the first token."""
        ...


@runtime_checkable
class FallibleEngine(Protocol):
    """An engine that knows whether it can still make tokens."""

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the engine; None while it works."""
        ...


@runtime_checkable
class UpdatableEngine(Protocol):
    """An engine whose weights can be updated in place."""

    @property
    def policy_version(self) -> int: ...

    def named_weights(self) -> Mapping[str, "Tensor"]:
        """Views of the parameters by their Hugging Face names. Write to them inside `paused_for_weight_sync` only."""
        ...

    def held(self) -> AbstractAsyncContextManager[None]:
        """Inside it no token is made, and nothing reads the weights."""
        ...

    def paused_for_weight_sync(self, policy_version: int) -> AbstractAsyncContextManager[None]:
        """Inside it the parameters may be updated; after it the engine generates with them."""
        ...

    async def drop_prefixes(self) -> None:
        """Empty the prefix cache; running turns keep what they have."""
        ...


Message = Mapping[str, str]
"""One turn of a conversation, with the keys `role` and `content`."""


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """The ids of exactly this text: nothing is put before or after it."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of exactly these ids, control tokens included."""
        ...
