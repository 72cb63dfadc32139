"""The catalog's entry of a data set: what it is for, where its files are, how they are read and graded."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.data.problem_rows import problems_of
from rstar2.data.rows import Row
from rstar2.records import Problem

ProblemReader = Callable[[Iterable[Row], str], Iterable[Problem]]


class SetKind(StrEnum):
    """The use of a data set."""

    BENCHMARK = "benchmark"
    """A benchmark is measured on and never trained on; training sets are decontaminated against it."""
    PROBLEMS = "problems"
    CONVERSATIONS = "conversations"


class Grading(StrEnum):
    """How a response to a problem of the set is graded."""

    ANSWER = "answer"
    """`rstar2.grading` compares the boxed answer with the gold."""
    INSTRUCTIONS = "instructions"
    """IFEval's checks are applied to the full response."""
    CALLS = "calls"
    """BFCL's rules compare the calls that were made with the right ones."""
    MULTI_TURN_CALLS = "multi_turn_calls"
    """BFCL's checker compares what the calls of a conversation did to simulated services."""
    JUDGE = "judge"
    """A judge model that the user names decides."""
    ENVIRONMENT = "environment"
    """The environment of a recipe's own set decides."""
    NOTHING = "nothing"
    """Nothing is graded: conversations are learnt from."""


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of a data set on the hub. `files` are names, all of which are needed, and patterns, of which the first that
    matches any file counts."""

    repo: str
    revision: str | None
    files: tuple[str, ...]
    sha256: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    """Whether the hub serves the set only to accounts that accepted its terms; `HF_TOKEN` must be such an account's."""


@dataclass(frozen=True, slots=True)
class CatalogSet:
    """A data set: what it is for, where its files are and how they are read."""

    kind: SetKind
    stems: tuple[str, ...]
    """The names that the set's file may have in a data folder, without the ending."""
    hub: HubSource | None
    """Where the set is on the hub; None if a user must put its file into a data folder."""
    num_rows: int
    licence: str
    name: str = ""
    """The set's name. A benchmark leaves name and summary out: both are in its line of `extensions.BENCHMARKS`."""
    summary: str = ""
    grading: Grading = Grading.ANSWER
    read: ProblemReader = problems_of
