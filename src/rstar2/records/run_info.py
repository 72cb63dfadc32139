"""The records about a run: `run.json`, and the rows of `metrics.jsonl` and `events.jsonl`."""

import os
import platform
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

RUN_SCHEMA_VERSION = 1


class RunStatus(StrEnum):
    """Whether a run is going, and how it ended."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """The run ended by an error, which `note` names."""
    INTERRUPTED = "interrupted"
    """The run was stopped from outside, by Ctrl-C or a kill; it can be resumed."""


@dataclass(frozen=True, slots=True)
class HostInfo:
    """The machine that a run was started on."""

    name: str
    platform: str
    python: str
    num_cores: int
    memory_bytes: int

    @classmethod
    def this(cls) -> "HostInfo":
        has_affinity = hasattr(os, "sched_getaffinity")
        return cls(
            name=platform.node(),
            platform=platform.platform(),
            python=platform.python_version(),
            num_cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Who made this directory, from what, and how it ended. Times are ISO 8601 in UTC."""

    verb: str
    """The command that runs: train, eval, solve."""
    rstar2_version: str
    argv: tuple[str, ...]
    seed: int | None
    host: HostInfo
    started: str
    status: RunStatus = RunStatus.RUNNING
    resumed: tuple[str, ...] = ()
    """The times at which the run was resumed."""
    ended: str | None = None
    note: str = ""
    """Why the run ended, if the status alone does not say."""
    schema_version: int = RUN_SCHEMA_VERSION
    """The version of the directory's layout, and of every row in it that has no version field."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The named numbers of one step; a number that is not finite is null, and an event names it."""

    step: int
    stage: str
    time: float
    """Seconds since the epoch."""
    values: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once: a sentence for people, and the facts as values."""

    time: float
    """Seconds since the epoch."""
    kind: str
    """One word for programs to filter by: started, checkpoint, torn_tail."""
    message: str
    data: dict[str, Any] = field(default_factory=dict)
