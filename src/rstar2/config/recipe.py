"""A recipe: a run in one value.

Invariant: a `Recipe` that exists is possible. Types and ranges are checked field by field, combinations by `checks`;
both hold however it was made, from a file or in Python.
"""

from typing import Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from rstar2.config.checks import impossibilities
from rstar2.config.cluster import ClusterSection
from rstar2.config.curriculum import DataSet, EvalSection, StageSection
from rstar2.config.environment import EnvironmentSection
from rstar2.config.generation import AgentSection, EngineSection, RolloutSection, SandboxSection
from rstar2.config.learning import AlgoSection, SftSection, TrainSection
from rstar2.config.model import ModelSection
from rstar2.config.section import Section

IMPOSSIBLE = "impossible"
"""The pydantic error type of an impossible combination; its context holds every one that was found."""


class Recipe(Section):
    """A run: the model, its tool, the problems, how it learns, and what is measured."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        examples=["my-run"],
        description="Name of the run, and of its directory: letters, digits, dots, dashes and underscores.",
    )
    seed: int = Field(
        0,
        ge=0,
        lt=1 << 63,
        description="The seed of every random choice. On one CPU the same seed gives the same result.",
    )
    model: ModelSection = Field(
        examples=[{"name": "smollm2-135m"}],
        description="The table [model], with at least its name: the weights that are trained or evaluated.",
    )
    sandbox: SandboxSection = Field(SandboxSection(), description="Limits of the model's programs, and where they run.")
    engine: EngineSection = Field(EngineSection(), description="The engine that generates tokens.")
    agent: AgentSection = Field(AgentSection(), description="The agent: format and limits of one conversation.")
    environment: EnvironmentSection = Field(
        EnvironmentSection(), description="The task: what the model is asked, its tools and its reward."
    )
    environments: dict[str, EnvironmentSection] = Field(
        {}, description="Further tasks by name. A set of [data] names the one that its problems belong to."
    )
    rollout: RolloutSection = Field(
        RolloutSection(), description="How many conversations run at once, and how they are placed on engines."
    )
    algo: AlgoSection = Field(AlgoSection(), description="The settings of GRPO-RoC.")
    sft: SftSection | None = Field(None, description="Supervised warm-up. If left out, there is none.")
    train: TrainSection = Field(TrainSection(), description="The optimizer, and which checkpoints are saved.")
    stages: tuple[StageSection, ...] = Field(
        (),
        strict=False,
        description="The stages of reinforcement learning, in order; none for a recipe that only evaluates.",
    )
    eval: EvalSection = Field(EvalSection(), description="The benchmarks to measure, and how.")
    cluster: ClusterSection | None = Field(
        None, description="The machines of a cluster. If left out, the run is one process."
    )
    data: dict[str, DataSet] = Field({}, description="Sets of problems and conversations, by name.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if found := tuple(impossibilities(self)):
            sentences = "\n".join(str(impossibility) for impossibility in found)
            raise PydanticCustomError(IMPOSSIBLE, "{sentences}", {"sentences": sentences, "found": found})
        return self

    def environment_of(self, name: str) -> EnvironmentSection:
        """The environment of a set of `[data]`."""
        named = self.data[name].environment
        return self.environment if named is None else self.environments[named]

    @property
    def trains(self) -> bool:
        return self.sft is not None or bool(self.stages)
