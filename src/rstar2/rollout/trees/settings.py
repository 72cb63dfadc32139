"""Settings for spending a tree's budget: how many leaves begin at the prompt, and in which rounds the others follow.
Pure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rstar2.extensions import FORK_POINTS
from rstar2.rollout.trees.points import PointRule
from rstar2.settings import pick

if TYPE_CHECKING:
    from rstar2.config import ForkSection, Recipe

ENTROPY_POLICY = "entropy"
ROOT_SHARE = 4
"""By default one leaf in four begins at the prompt."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    num_roots: int
    """Leaves that begin at the prompt."""
    num_rounds: int = 1
    policy: str = "uniform"
    points: str = "results"
    """An entry of `FORK_POINTS`."""
    max_generated_tokens: int | None = None
    """Once the roots have ended, a leaf is begun only if these tokens are expected to pay for it."""
    knows_rewards: bool = True
    """Whether the policy sees the rewards of leaves. At test time there are none."""

    @classmethod
    def of(cls, recipe: "Recipe") -> Self | None:
        """The settings of training."""
        tree = recipe.rollout.tree
        return None if tree is None else pick(cls, tree, knows_rewards=True)

    @classmethod
    def of_evaluation(cls, section: "ForkSection | None") -> Self | None:
        return None if section is None else pick(cls, section, knows_rewards=False)

    @classmethod
    def for_search(cls, num_leaves: int, max_generated_tokens: int | None = None) -> Self:
        """The settings of a search at test time, from the number of leaves alone."""
        num_roots = max(1, num_leaves // ROOT_SHARE)
        return cls(num_roots, max_generated_tokens=max_generated_tokens, knows_rewards=False)

    def rounds(self, num_leaves: int) -> list[int]:
        """How many leaves each round samples. The first round's begin at the prompt; the others are as equal as can
        be."""
        num_roots = min(self.num_roots, num_leaves)
        num_left = num_leaves - num_roots
        num_rounds = min(self.num_rounds, num_left)
        return [num_roots, *(num_left * (n + 1) // num_rounds - num_left * n // num_rounds for n in range(num_rounds))]

    @property
    def rule(self) -> PointRule:
        """The rule for where a leaf may be forked."""
        rule: PointRule = FORK_POINTS.load(self.points)
        return rule

    @property
    def needs_entropies(self) -> bool:
        """Whether the engine must report the entropy of each token."""
        return self.rule.needs_entropies or self.policy == ENTROPY_POLICY
