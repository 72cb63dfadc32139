"""The work of an update in floating-point operations, without recomputation. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rstar2.train.memory.sizes import ModelSizes

_FORWARD = 2
"""Operations for each weight and token: a multiply and an add."""
_ATTENTION = 4
"""Operations for each number of a query and pair of tokens: a multiply and an add for the score and for the weighted
sum."""


@dataclass(frozen=True, slots=True)
class TokenWork:
    """Counts of tokens, over any number of rollouts."""

    num_trained: int = 0
    """Tokens of prompts and responses, with each prompt counted once for every rollout."""
    num_computed: int = 0
    """Tokens of prompts and responses, with shared prompts counted once."""
    num_learnt: int = 0
    """Tokens that are learnt from: the head is applied only where they are predicted."""
    num_pairs: float = 0.0
    """Pairs of a token and one that it attends to, itself included."""

    @classmethod
    def of_family(cls, lengths: Sequence[int], num_learnt: int, num_shared: int) -> "TokenWork":
        """Rollouts that begin with the same `num_shared` tokens, which are computed once."""
        own = [length - num_shared for length in lengths]
        return cls(
            num_trained=sum(lengths),
            num_computed=num_shared + sum(own),
            num_learnt=num_learnt,
            num_pairs=num_shared**2 / 2 + sum(length * num_shared + length**2 / 2 for length in own),
        )

    @classmethod
    def total(cls, parts: Iterable["TokenWork"]) -> "TokenWork":
        total = cls()
        for part in parts:
            total = cls(
                total.num_trained + part.num_trained,
                total.num_computed + part.num_computed,
                total.num_learnt + part.num_learnt,
                total.num_pairs + part.num_pairs,
            )
        return total


def product_flop(work: TokenWork, sizes: ModelSizes, *, is_full: bool) -> float:
    """FLOPs of the products with weights, forward and backward. Adapters need no gradients of weights; their own
    products are too small to count."""
    num_passes = 3 if is_full else 2
    return num_passes * _FORWARD * (sizes.num_projected() * work.num_computed + sizes.num_embedded * work.num_learnt)


def attention_flop(work: TokenWork, sizes: ModelSizes) -> float:
    """FLOPs of attention: the backward pass has twice as many as the forward pass."""
    return 3 * _ATTENTION * sizes.queries * sizes.layers * work.num_pairs
