"""The description of a build's source: where its files are, under what licence, and how a row is converted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rstar2.data.catalog_set import HubSource
from rstar2.data.conversation import Conversation
from rstar2.data.rows import Row
from rstar2.errors import UserError
from rstar2.extensions import RL_SOURCES, SFT_SOURCES
from rstar2.records import Problem

Item = Conversation | Problem


class LeftOut(StrEnum):
    """Why a converter left a row out. Rows that `curate` rejects later have that module's own reasons."""

    UNREADABLE = "unreadable"
    """The line is no row, or lacks a column."""
    BAD_TOOLS = "bad_tools"
    """The functions on offer cannot be read."""
    BAD_CALL = "bad_call"
    """A call cannot be read."""
    UNKNOWN_TOOL = "unknown_tool"
    """The conversation calls a function that it does not offer."""
    FORM = "form"
    """The order of the turns cannot be learnt from, or a turn is empty."""
    REASONING = "reasoning"
    """The assistant reasons; the warm-up teaches format only."""
    NOT_PYTHON = "not_python"
    NO_PROGRAM = "no_program"
    """The solution has no program, or several."""
    BROKEN_PROGRAM = "broken_program"
    """The program does not parse."""
    NO_ANSWER = "no_answer"
    VOTED_ANSWER = "voted_answer"
    """The answer is the majority of generated solutions, not the source's own."""
    REPEATED = "repeated"
    """The same row occurred before in this set."""
    CONTAMINATED = "contaminated"


class LeftOutError(Exception):
    """Raised by a converter that leaves a row out."""

    def __init__(self, reason: LeftOut, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


Converter = Callable[[Row], Item]
"""A pure function from a row to an item, whose id depends on its content alone; the source's name is added later. It
raises LeftOutError, or UserError about a missing column, to leave the row out."""


@dataclass(frozen=True, slots=True)
class BuildSource:
    file: str
    """The stem of the file that the source's rows go to."""
    hub: HubSource
    num_rows: int
    """The number of rows as published."""
    licence: str
    convert: Converter
    columns: tuple[str, ...] | None = None
    """The columns that are read of a Parquet file; None for all."""
    name: str = ""
    """The source's name in the table of `extensions`."""


def sources_of(kind: str, names: Sequence[str] = ()) -> tuple[BuildSource, ...]:
    """The sources of `sft` or `rl`, or those that are named, in the table's order."""
    table = {"sft": SFT_SOURCES, "rl": RL_SOURCES}[kind]
    if unknown := [name for name in names if name not in table]:
        raise UserError(f"there is no source {unknown[0]!r} of {kind}; there are {', '.join(table)}")
    return tuple(replace(table.load(name), name=name) for name in table if not names or name in names)
