"""A recipe: a whole run in one value.

Invariant: a `Recipe` that exists is possible. Types and ranges are checked field by field, combinations by `checks`;
both hold however it was made, from a file or in Python.
"""

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rstar2.config.checks import impossibilities
from rstar2.config.cluster import ClusterSection
from rstar2.config.curriculum import DataSet, EvalSection, StageSection
from rstar2.config.generation import AgentSection, EngineSection, RolloutSection, SandboxSection
from rstar2.config.learning import AlgoSection, SftSection, TrainSection
from rstar2.config.model import ModelSection
from rstar2.config.section import Section

IMPOSSIBLE = "impossible"
"""The pydantic error type of an impossible combination; its context holds every one that was found."""


class Recipe(Section):
    """A whole run: the model, its tool, the problems, how it learns, and what is measured."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["my-run"],
        description="Name of the run, and of its directory: letters, digits, dots, dashes and underscores.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=1 << 63,
        description="Every random choice draws from a generator named after this: one seed, one result, on one CPU.",
    )
    model: ModelSection = Field(
        examples=[{"name": "smollm2-135m"}],
        description="The table [model], with at least its name: which weights are trained or asked.",
    )
    sandbox: SandboxSection = Field(SandboxSection(), description="Where the model's programs run.")
    engine: EngineSection = Field(EngineSection(), description="Who makes the tokens.")
    agent: AgentSection = Field(AgentSection(), description="How one conversation goes.")
    rollout: RolloutSection = Field(RolloutSection(), description="Many conversations at once.")
    algo: AlgoSection = Field(AlgoSection(), description="GRPO-RoC.")
    sft: SftSection | None = Field(None, description="Supervised warm-up; left out, there is none.")
    train: TrainSection = Field(TrainSection(), description="The optimizer, and what is saved.")
    stages: tuple[StageSection, ...] = Field(
        (),
        strict=False,
        description="The stages of reinforcement learning, in order; none for a recipe that only evaluates.",
    )
    eval: EvalSection = Field(EvalSection(), description="What is measured.")
    cluster: ClusterSection | None = Field(None, description="Many machines; left out, one process.")
    data: dict[str, DataSet] = Field({}, description="Sets of problems and conversations, by name.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if found := tuple(impossibilities(self)):
            sentences = "\n".join(str(impossibility) for impossibility in found)
            raise PydanticCustomError(IMPOSSIBLE, "{sentences}", {"sentences": sentences, "found": found})
        return self

    @property
    def trains(self) -> bool:
        return self.sft is not None or bool(self.stages)
