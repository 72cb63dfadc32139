"""The protocol by which a benchmark is measured. The defaults are the report's, so that every deviation can be
named."""

from dataclasses import dataclass, fields
from typing import Self

from rstar2.agent import AgentLimits
from rstar2.config import Recipe
from rstar2.engine import Sampling
from rstar2.errors import UserError
from rstar2.rollout.trees import TreeSettings
from rstar2.settings import pick


@dataclass(frozen=True, slots=True)
class EvalSettings:
    num_samples: int = 16
    temperature: float = 0.6
    max_response_tokens: int = 30_720
    max_turns: int = 30
    has_tools: bool = True
    """If False, the model gets no tool: plain chain of thought."""
    entropies: bool = False
    """Whether to record the entropy of each token's distribution, for `rstar2 analyze`; only the embedded engine
    can."""
    max_tool_output_tokens: int = 1024
    max_fault_retries: int = 2
    """How often a call or a turn that failed through our fault is retried."""
    tree: TreeSettings | None = None
    """If set, the samples of a problem are the leaves of a tree."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """The settings with which a recipe evaluates during training."""
        tree = TreeSettings.of_evaluation(recipe.eval.tree)
        return pick(cls, recipe.eval, recipe.agent, recipe.rollout, has_tools=True, entropies=False, tree=tree)

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise UserError(f"num_samples must be at least 1, not {self.num_samples}")
        if self.temperature < 0:
            raise UserError(f"temperature must not be negative, but it is {self.temperature}")
        assert self.limits

    @property
    def limits(self) -> AgentLimits:
        return AgentLimits(
            max_turns=self.max_turns,
            max_response_tokens=self.max_response_tokens,
            max_tool_output_tokens=self.max_tool_output_tokens,
            max_fault_retries=self.max_fault_retries,
        )

    @property
    def sampling(self) -> Sampling:
        needs_entropies = self.tree is not None and self.tree.needs_entropies
        return Sampling(temperature=self.temperature, entropies=self.entropies or needs_entropies)

    @property
    def deviations(self) -> tuple[str, ...]:
        """How these settings differ from the report's, as clauses for people; empty if they do not."""
        found = []
        for name, label in _REPORTED.items():
            value, reported = getattr(self, name), getattr(REPORT, name)
            if value != reported:
                found.append("no tools" if name == "has_tools" else f"{label} {value:,} (report: {reported:,})")
        if self.tree is not None:
            found.append(f"trees: {self.tree.num_roots:,} samples of a problem begin at its prompt")
        return tuple(found)


_REPORTED = {
    "num_samples": "samples",
    "temperature": "temperature",
    "max_response_tokens": "response tokens",
    "max_turns": "turns",
    "has_tools": "tools",
}
"""The fields that the report states."""

REPORT = EvalSettings()
assert _REPORTED.keys() <= {field.name for field in fields(EvalSettings)}
