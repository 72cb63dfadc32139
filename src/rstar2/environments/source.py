"""The source of an environment: how it is opened, its own rows, and its default tools."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rstar2.environments.protocol import Environment, Services

if TYPE_CHECKING:
    from rstar2.config import EnvironmentSection

OpenEnvironment = Callable[["EnvironmentSection", Services], AbstractAsyncContextManager[Environment]]
Rows = Callable[["EnvironmentSection"], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    open: OpenEnvironment
    """Opens the environment, once per process."""
    rows: Rows | None = None
    """The environment's own tasks, which a data set names as `source = "environment"`. UserError if they cannot be
    read. None if a data set must be given."""
    tools: tuple[str, ...] = ()
    """The tools for a recipe that names none, besides the environment's own."""
    reads_answers: bool = False
    """Whether a row needs a question and a gold answer, as in mathematics; otherwise a row may have any shape."""
    opens_at_once: bool = False
    """Whether the environment opens without its own server or process. `rstar2 train --dry-run` opens such an
    environment and checks the opening of every row."""
