"""Resolves what a user names on a command line: a source as in a recipe, a name of the catalog, or a file."""

from pathlib import Path

from rstar2.config import DataSet
from rstar2.data import procedural
from rstar2.data.catalog import CATALOG, find_set
from rstar2.data.catalog_set import Grading, SetKind
from rstar2.data.conversation import Conversation
from rstar2.data.conversation_rows import conversations_of, holds_conversation
from rstar2.data.load import (
    find_files,
    load_catalog_problems,
    load_conversations,
    load_problems,
    local_files,
    rows_of,
)
from rstar2.data.rows import is_data_file, read_rows
from rstar2.errors import UserError
from rstar2.records import Problem

SOURCE_KINDS = ("procedural", "catalog", "hub", "file")
NUM_GENERATED = 100
"""The size of a procedural set that is named without a number."""


def source_of(name: str) -> str:
    """The named data as a recipe's source. If there is no such data, a UserError says what could be meant."""
    if name.partition(":")[0] in SOURCE_KINDS and ":" in name:
        return name
    if name in CATALOG:
        return f"catalog:{name}"
    if is_data_file(name) or Path(name).exists():
        return f"file:{name}"
    find_set(name)
    raise AssertionError("a name that is not in the catalog is refused above")


def grading_of(name: str) -> Grading:
    kind, _, rest = source_of(name).partition(":")
    return find_set(rest).grading if kind == "catalog" else Grading.ANSWER


def local_files_of(name: str, data_dir: Path | None = None) -> tuple[Path, ...]:
    """The user's own files of the named set; none for generated sets and for those in the hub's cache."""
    kind, _, rest = source_of(name).partition(":")
    if kind == "file":
        return (Path(rest).expanduser(),)
    return (find_files(find_set(rest), data_dir) or ()) if kind == "catalog" else ()


def load_any_problems(
    name: str, data_dir: Path | None = None, num_generated: int = NUM_GENERATED, seed: int = 0
) -> tuple[Problem, ...]:
    source = source_of(name)
    kind, _, rest = source.partition(":")
    if kind == "catalog":
        return load_catalog_problems(rest, data_dir)
    return load_problems(rest, _spec(source, num_generated), seed)


def load_any(
    name: str, data_dir: Path | None = None, num_generated: int = NUM_GENERATED, seed: int = 0
) -> tuple[Problem, ...] | tuple[Conversation, ...]:
    """The problems or conversations of the named set, whichever it holds."""
    source = source_of(name)
    kind, _, rest = source.partition(":")
    if not holds_conversations(source):
        return load_any_problems(name, data_dir, num_generated, seed)
    if kind == "catalog":
        return tuple(conversations_of(rows_of(local_files(find_set(rest), data_dir)), rest))
    return load_conversations(rest, _spec(source, num_generated), seed)


def holds_conversations(source: str) -> bool:
    """Whether a recipe's source holds conversations: the first readable row of a file decides. A hub set holds
    problems."""
    kind, _, rest = source.partition(":")
    match kind:
        case "catalog":
            return find_set(rest).kind is SetKind.CONVERSATIONS
        case "procedural":
            return rest in procedural.CONVERSATION_TASKS
        case "file":
            first = next(read_rows(Path(rest).expanduser(), lambda _: None), None)
            return first is not None and holds_conversation(first)
    return False


def _spec(source: str, num_generated: int) -> DataSet:
    is_generated = source.startswith("procedural:")
    try:
        return DataSet(source=source, num_problems=num_generated if is_generated else None)
    except ValueError as error:
        raise UserError(f"{source!r} is not a source: {error}") from error
