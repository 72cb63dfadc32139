"""What the rollout scheduler's engines did in one step: how full they were, when they stood idle, what was done twice,
and why the step took as long as it did.

Invariant: all times are seconds since the step began, by one clock. The spans of a critical path follow one another
without a gap, from the moment the rollout was submitted (or the step began, if that was later) to the end of it.
"""

from dataclasses import dataclass
from enum import StrEnum

STEP_RECORD_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine at one moment."""

    at_s: float
    engine: str
    num_turns: int
    """Turns that were sent there and have not ended: what the driver knows."""
    num_running: int
    """And what the engine itself says: turns that compute."""
    num_waiting: int
    """Turns in the engine's own queue."""
    kv_share: float
    """Of the cache: what running turns hold; 0 for an engine whose cache is out of sight."""
    num_prefill_tokens: int
    """Since the engine joined, or the step began if that was later; and so the next."""
    num_generated_tokens: int


@dataclass(frozen=True, slots=True)
class EngineUse:
    """One engine over the whole step."""

    engine: str
    num_cache_tokens: int
    """0 if they are out of sight."""
    joined_s: float
    left_s: float
    """When it was lost, or the step ended."""
    busy_s: float
    """With at least one turn to work on."""
    idle_s: float
    mean_turns: float
    """Turns at the engine at a time, averaged over its life in the step."""
    peak_kv_share: float
    num_preemptions: int
    num_recomputed_tokens: int
    """After preemptions of its own, as the engine counts them."""
    num_new_tokens: int
    """Prompts, once a problem, and tool responses that were sent there: what had to be prefilled in any case."""
    num_prefill_tokens: int
    """Beyond the new ones: work that was done again, because of preemptions, moves, or caches that were given up."""
    num_generated_tokens: int


class SpanKind(StrEnum):
    """What a rollout was doing."""

    QUEUED = "queued"
    """It wanted to run and had no place."""
    FIRST_TOKEN = "first_token"
    """Sent to an engine, and no token yet: the engine's own queue, and the prefill."""
    GENERATING = "generating"
    TOOL = "tool"
    """Away from engines: tools, and whatever else the rollout does between its turns."""


@dataclass(frozen=True, slots=True)
class RolloutSpan:
    kind: SpanKind
    start_s: float
    end_s: float
    engine: str = ""
    """Where; empty while it is queued or away."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: int
    started: float
    """Seconds since the epoch."""
    duration_s: float
    num_rollouts: int
    """Rollouts that ended in the step."""
    queued_s: float
    """Of all rollouts together; and so the next two."""
    generating_s: float
    """At engines, the time to their first token included."""
    tool_s: float
    num_starts: int
    num_moves: int
    num_moved_tokens: int
    """Contexts of rollouts that went on where their cache was not: at most so many tokens were computed again."""
    num_cancels: int
    """Running turns that had to make room."""
    num_evictions: int
    """Caches of rollouts at their tools that had to make room."""
    num_engines_lost: int
    engines: tuple[EngineUse, ...]
    critical_rollout: str
    """The rollout that ended last; empty if none did."""
    critical_path: tuple[RolloutSpan, ...]
    samples: tuple[EngineSample, ...]
    """In the order of time."""
    schema_version: int = STEP_RECORD_SCHEMA_VERSION
