"""A problem: what is asked, and the gold answer that a grader compares with."""

from dataclasses import dataclass, field

PROBLEM_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One task. `answer` is the gold as its source wrote it; only graders read it, never the model."""

    id: str
    problem: str
    answer: str
    source: str = ""
    level: str | None = None
    subject: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    schema_version: int = PROBLEM_SCHEMA_VERSION
