"""`[data]`, `[[stages]]` and `[eval]`: which problems, in what order, within what limits, and what is measured."""

import re

from pydantic import Field, field_validator

from rstar2.config.section import Section
from rstar2.config.trees import ForkSection
from rstar2.extensions import BENCHMARKS

_SOURCES = {
    "procedural": re.compile(r"[a-z0-9_]+(,[a-z0-9_]+)*"),
    "catalog": re.compile(r"[A-Za-z0-9_.-]+"),
    "hub": re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?"),
    "file": re.compile(r".+"),
    "environment": re.compile(r""),
}
_SOURCE_FORMS = "procedural:TASK[,TASK], catalog:NAME, hub:OWNER/NAME[@REVISION], file:PATH or environment"


class DataSet(Section):
    """`[data.NAME]`: one set of problems or conversations."""

    source: str = Field(
        examples=["file:data/problems.jsonl"],
        description="Where it comes from. procedural:TASK[,TASK] is generated; its random stream is named by the "
        "recipe's seed and the set's name, so two sets never share one. catalog:NAME is a set that `rstar2 data get` "
        "knows. hub:OWNER/NAME[@REVISION] is on the Hugging Face hub. file:PATH is a JSONL or Parquet file, relative "
        "to the working directory. environment is the tasks that the set's environment brings itself; in [sft] it is "
        "conversations in their format, num_problems of them: three in ten played with their own solution, the others "
        "with that of another task.",
    )
    environment: str | None = Field(
        None,
        min_length=1,
        description="The name of the set's environment in [environments]. If left out, it is [environment].",
    )
    share: float | None = Field(
        None,
        gt=0,
        description="The set's weight among the sets of a stage: of two sets with shares 1 and 3 the second gives "
        "three problems in four. Give it for all sets of a stage, or for none: then each set counts by its size.",
    )
    split: str = Field("train", min_length=1, description="Split of a hub set; of no meaning to the others.")
    num_problems: int | None = Field(
        None,
        ge=1,
        description="The largest number of problems to use, drawn with the seed. Left out, all of the set. A "
        "procedural set needs the number, and generates exactly that many.",
    )

    @field_validator("source")
    @classmethod
    def _source_has_a_known_form(cls, source: str) -> str:
        kind, _, rest = source.partition(":")
        if kind not in _SOURCES or not _SOURCES[kind].fullmatch(rest):
            raise ValueError(f"must be {_SOURCE_FORMS}, not {source!r}")
        return source

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]


class DifficultyFilter(Section):
    """`[stages.difficulty_filter]`: before the stage, drop what the current policy already solves."""

    num_samples: int = Field(8, ge=1, description="Rollouts of each problem before the stage begins. The report's 8.")
    drop_solved: int = Field(
        8, ge=1, description="A problem with at least this many right rollouts is dropped. The report's 8 of 8."
    )


class StageSection(Section):
    """`[[stages]]`: one stage of reinforcement learning. Stages run in the order of the file."""

    name: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]*$",
        examples=["concise"],
        description="Name in metrics, checkpoints and overrides (stages.concise.steps=5); begins with a letter.",
    )
    data: tuple[str, ...] = Field(
        strict=False,
        min_length=1,
        examples=[["train"]],
        description="Sets of problems from [data], all of them together.",
    )
    max_response_tokens: int = Field(
        ge=16,
        examples=[8192],
        description="Tokens after the prompt, the model's and the tool's together. Short first makes the model "
        "concise; the report goes 8K, 12K, 12K.",
    )
    max_turns: int = Field(
        10, ge=1, description="Assistant turns of one rollout. The report's 10, and 15 in its last stage."
    )
    steps: int = Field(ge=1, examples=[300], description="Training steps; at most, if target_reward is given.")
    target_reward: float | None = Field(
        None,
        gt=0,
        le=1,
        description="End the stage early once the mean reward of the last 10 steps, over all sampled rollouts, is at "
        "least this. Left out, all steps are run.",
    )
    reset_optimizer: bool = Field(
        False, description="Begin with a fresh optimizer and warm-up. The report does so before its last stage."
    )
    difficulty_filter: DifficultyFilter | None = Field(
        None, description="Drop the problems that are already solved. Left out, none are dropped."
    )


class EvalSection(Section):
    """`[eval]`: what is measured, by the report's protocol unless said otherwise."""

    benchmarks: tuple[str, ...] = Field(
        (),
        strict=False,
        description=f"What to measure after warm-up and after each stage: {', '.join(BENCHMARKS)}, or sets of [data]. "
        "Empty, nothing is.",
    )
    num_samples: int = Field(
        16, ge=1, description="Rollouts of each problem; the score is their mean. The report's 16."
    )
    temperature: float = Field(0.6, ge=0, description="Sampling temperature; 0 is greedy. The report's 0.6.")
    max_response_tokens: int = Field(
        30_720, ge=16, description="Tokens after the prompt. The report's 30K: more than in training."
    )
    max_turns: int = Field(30, ge=1, description="Assistant turns of one rollout. The report's 30.")
    every_steps: int | None = Field(
        None, ge=1, description="Evaluate after every N training steps too. Left out, only after warm-up and stages."
    )
    tree: ForkSection | None = Field(
        None, description="The samples of a problem as a tree. If left out, every sample begins at the prompt."
    )
