"""What a build knows of a source: where its files are, under what licence, and what is made of a row."""

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
    """Why a converter makes nothing of a row. What `curate` rejects later has that module's own reasons."""

    UNREADABLE = "unreadable"
    """It is no row, or lacks a column."""
    BAD_TOOLS = "bad_tools"
    """The functions on offer cannot be read."""
    BAD_CALL = "bad_call"
    """A call cannot be read."""
    UNKNOWN_TOOL = "unknown_tool"
    """It calls a function that it does not offer."""
    FORM = "form"
    """The turns are in no order that can be learnt from, or one is empty."""
    REASONING = "reasoning"
    """The assistant reasons; the warm-up teaches format only."""
    NOT_PYTHON = "not_python"
    NO_PROGRAM = "no_program"
    """The solution has no program, or several."""
    BROKEN_PROGRAM = "broken_program"
    """The program does not parse."""
    NO_ANSWER = "no_answer"
    VOTED_ANSWER = "voted_answer"
    """The answer is what most generated solutions said, not what the source says."""
    REPEATED = "repeated"
    """The same row came before in this set."""
    CONTAMINATED = "contaminated"


class LeftOutError(Exception):
    """A converter's way to say that it makes nothing of this row."""

    def __init__(self, reason: LeftOut, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


Converter = Callable[[Row], Item]
"""Pure. What it makes has an id of its content alone; the source's name comes to it later. LeftOutError, or a UserError
about a missing column, where nothing is made of the row."""


@dataclass(frozen=True, slots=True)
class BuildSource:
    file: str
    """The stem of the file that its rows go to."""
    hub: HubSource
    num_rows: int
    """The number of rows as published."""
    licence: str
    convert: Converter
    columns: tuple[str, ...] | None = None
    """What is read of a Parquet file; None for all."""
    name: str = ""
    """Its name in the table of `extensions`."""


def sources_of(kind: str, names: Sequence[str] = ()) -> tuple[BuildSource, ...]:
    """The sources of `sft` or `rl`, or those that are named, in the table's order."""
    table = {"sft": SFT_SOURCES, "rl": RL_SOURCES}[kind]
    if unknown := [name for name in names if name not in table]:
        raise UserError(f"there is no source {unknown[0]!r} of {kind}; there are {', '.join(table)}")
    return tuple(replace(table.load(name), name=name) for name in table if not names or name in names)
