"""The report of a build, for people and programs: every row that came in is kept, or counted under one reason."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rstar2.data.build.parts import MAX_EXAMPLES, Part
from rstar2.data.build.source import BuildSource, LeftOut
from rstar2.data.curate import Reason
from rstar2.records.atomic import replace_file

SCHEMA_VERSION = 1
IN_REPORT = {"sft-function-calls": 165_000, "sft-instructions": 30_000, "sft-chat": 27_000, "rl-42k": 42_000}
"""How many rows the report (the paper) has in each set."""
_REASONS = tuple(dict.fromkeys((*map(str, LeftOut), *map(str, Reason))))


@dataclass(frozen=True, slots=True)
class SourceReport:
    name: str
    repo: str
    revision: str | None
    """The requested revision of the hub; None for its newest, and for a user's own files."""
    commit: str | None
    """The commit that the revision was; None for a user's own files, which only their SHA-256 identifies."""
    licence: str
    files: dict[str, str]
    """The SHA-256 of each file."""
    num_in: int
    left_out: dict[str, int]
    num_kept: int
    examples: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class SetReport:
    file: str
    num_rows: int
    num_in_report: int | None
    sha256: str


@dataclass(frozen=True, slots=True)
class BuildReport:
    kind: str
    sources: list[SourceReport]
    sets: list[SetReport]
    against: list[str] = field(default_factory=list)
    min_overlap_share: float = 0.0
    schema_version: int = SCHEMA_VERSION


class Tally:
    """Counts how many of one source's rows are kept or left out while its set is put together."""

    def __init__(self, source: BuildSource, commit: str | None, parts: list[Part]) -> None:
        self._source = source
        self._commit = commit
        self._parts = parts
        self._left_out: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._num_kept = 0
        for part in parts:
            self._left_out.update(part.left_out)
            for reason, places in part.examples.items():
                self._list(reason, places)

    def keep(self) -> None:
        self._num_kept += 1

    def leave_out(self, reason: str, what: str) -> None:
        self._left_out[reason] += 1
        self._list(reason, [what])

    def report(self) -> SourceReport:
        num_in = sum(part.num_in for part in self._parts)
        assert num_in == self._num_kept + self._left_out.total(), "a row was neither kept nor counted"
        return SourceReport(
            self._source.name,
            self._source.hub.repo,
            None if self._commit is None else self._source.hub.revision,
            self._commit,
            self._source.licence,
            {part.input_name: part.input_sha256 for part in self._parts},
            num_in,
            {reason: self._left_out[reason] for reason in _REASONS if self._left_out[reason]},
            self._num_kept,
            self._examples,
        )

    def _list(self, reason: str, places: list[str]) -> None:
        listed = self._examples.setdefault(reason, [])
        listed += places[: MAX_EXAMPLES - len(listed)]


def write_report(path: Path, report: BuildReport) -> None:
    replace_file(path, (json.dumps(asdict(report), indent=2, ensure_ascii=False) + "\n").encode())
