"""What the catalog knows of a data set: what it is for, where its files are, how they are read and graded."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.data.problem_rows import problems_of
from rstar2.data.rows import Row
from rstar2.records import Problem

ProblemReader = Callable[[Iterable[Row], str], Iterable[Problem]]


class Kind(StrEnum):
    """What a set is for."""

    BENCHMARK = "benchmark"
    """Measured on. Never trained on, and what training sets are decontaminated against."""
    PROBLEMS = "problems"
    CONVERSATIONS = "conversations"


class Grading(StrEnum):
    """What decides whether a response to a problem of the set is right."""

    ANSWER = "answer"
    """The answer in the box against the gold, by `rstar2.grading`."""
    INSTRUCTIONS = "instructions"
    """IFEval's checks of the full response."""
    CALLS = "calls"
    """BFCL's comparison of the calls that were made."""
    MULTI_TURN_CALLS = "multi_turn_calls"
    """BFCL's comparison of what the calls of a conversation did to simulated services."""
    JUDGE = "judge"
    """A judge model of the user's."""
    ENVIRONMENT = "environment"
    """The environment of a recipe's own set."""
    NOTHING = "nothing"
    """Conversations are learnt from, not graded."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a data set on the hub. `files` are names, all of which are needed, or patterns, of which the first that
    matches any file counts."""

    repo: str
    revision: str | None
    files: tuple[str, ...]
    sha256: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    """The hub gives it only to accounts that accepted its terms; `HF_TOKEN` must be such an account's."""


@dataclass(frozen=True, slots=True)
class CatalogSet:
    """A data set: what it is for, where its files are and how they are read."""

    kind: Kind
    stems: tuple[str, ...]
    """The names that its file may have in a data folder, without the ending."""
    hub: HubSource | None
    """None if a user must put the file into a data folder."""
    num_rows: int
    licence: str
    name: str = ""
    """A benchmark leaves it and its summary out: both are in its line of `extensions.BENCHMARKS`."""
    summary: str = ""
    grading: Grading = Grading.ANSWER
    read: ProblemReader = problems_of
