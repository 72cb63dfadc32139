"""Where an environment comes from: how it is opened, which rows it has of its own, and which tools it starts with."""

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
    """Opens the environment, once in each process."""
    rows: Rows | None = None
    """The tasks that the environment brings itself: a data set names them as `source = "environment"`. UserError if
    they cannot be read. None if a data set must be given."""
    tools: tuple[str, ...] = ()
    """The tools of a recipe that names none, beside those that the environment makes itself."""
    reads_answers: bool = False
    """Whether a row needs a question and a gold answer, as mathematics does. If not, a row may have any shape."""
    opens_at_once: bool = False
    """Whether it opens without a server or a process of its own. `rstar2 train --dry-run` opens such an environment
    and asks it for the opening of every row."""
