"""The record of what the scheduler's engines did in one step: how full they were, when they were idle, what they
recomputed, and why the step took as long as it did.

Invariant: all times are seconds since the step began, by one clock. The spans of a critical path follow one another
without a gap, from the moment the rollout was submitted (or the step began, if that was later) to the end of it.
"""

from dataclasses import dataclass
from enum import StrEnum

STEP_RECORD_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The state of one engine at one moment."""

    at_s: float
    engine: str
    num_turns: int
    """Turns that the driver sent to the engine and that have not ended."""
    num_running: int
    """Turns that are running, as the engine reports."""
    num_waiting: int
    """Turns in the engine's own queue, as the engine reports."""
    kv_share: float
    """The share of the KV cache that running turns hold; 0 for an engine that does not report it."""
    num_prefill_tokens: int
    """Tokens prefilled since the engine joined, or since the step began if that was later."""
    num_generated_tokens: int
    """Tokens generated since the engine joined, or since the step began if that was later."""


@dataclass(frozen=True, slots=True)
class EngineUse:
    """The work of one engine over the step."""

    engine: str
    num_cache_tokens: int
    """The size of the KV cache in tokens; 0 if the engine does not report it."""
    joined_s: float
    left_s: float
    """When the engine was lost, or the step ended."""
    busy_s: float
    """Seconds with at least one turn to work on."""
    idle_s: float
    mean_turns: float
    """The number of turns at the engine, averaged over its time in the step."""
    peak_kv_share: float
    num_preemptions: int
    num_recomputed_tokens: int
    """Tokens that the engine recomputed after its own preemptions, as it counts them."""
    num_new_tokens: int
    """Tokens that had to be prefilled in any case: each problem's prompt once, and tool responses."""
    num_prefill_tokens: int
    """Tokens prefilled beyond the new ones: recomputed after preemptions, moves, or evictions from the cache."""
    num_generated_tokens: int


class SpanKind(StrEnum):
    """What a rollout was doing in a span."""

    QUEUED = "queued"
    """The rollout waited for a place on an engine."""
    FIRST_TOKEN = "first_token"
    """The rollout was at an engine without a token yet: in the engine's own queue, or in prefill."""
    GENERATING = "generating"
    TOOL = "tool"
    """The rollout was away from engines: at a tool, or at other work between its turns."""


@dataclass(frozen=True, slots=True)
class RolloutSpan:
    kind: SpanKind
    start_s: float
    end_s: float
    engine: str = ""
    """The name of the engine; empty while the rollout is queued or away."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    step: int
    started: float
    """Seconds since the epoch."""
    duration_s: float
    num_rollouts: int
    """Rollouts that ended in the step."""
    queued_s: float
    """Seconds that all rollouts together were queued."""
    generating_s: float
    """Seconds that all rollouts together were at engines, with the time to their first token."""
    tool_s: float
    """Seconds that all rollouts together were at their tools."""
    num_starts: int
    num_moves: int
    num_moved_tokens: int
    """The context tokens of rollouts that continued on an engine without their cache: an upper bound of the recomputed
    tokens."""
    num_cancels: int
    """Running turns that were cancelled to make room."""
    num_evictions: int
    """Caches of rollouts at their tools that were evicted to make room."""
    num_engines_lost: int
    engines: tuple[EngineUse, ...]
    critical_rollout: str
    """The rollout that ended last; empty if none did."""
    critical_path: tuple[RolloutSpan, ...]
    samples: tuple[EngineSample, ...]
    """Samples of all engines, ordered by time."""
    schema_version: int = STEP_RECORD_SCHEMA_VERSION
