"""Agents that come with this package: adapters that were trained here for a model of the catalog.

Each has a folder, as `train` leaves it in `final/adapter`, with a card that says how the agent was trained, and what it
can and cannot do.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AgentEntry:
    name: str
    base: str
    """The model that it adapts, by its name in the catalog."""
    summary: str

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / self.name


_ENTRIES = (
    AgentEntry(
        name="smollm2-135m-agent",
        base="smollm2-135m",
        summary="taught here to compute with Python: the default of `rstar2 solve` and `rstar2 chat`",
    ),
)

AGENTS: dict[str, AgentEntry] = {entry.name: entry for entry in _ENTRIES}
