"""Merges the records of one step that several processes drove on the same engines. Pure.

An engine's own values are the same in all of the records; the work sent to it adds up. An engine is busy while any
process has a turn there: at least for the longest busy time that one of them saw.
"""

from collections.abc import Sequence
from dataclasses import replace

from rstar2.records import EngineSample, EngineUse, RolloutSpan, StepRecord


def merged(records: Sequence[StepRecord]) -> StepRecord:
    if len(records) == 1:
        return records[0]
    first = min(records, key=lambda record: record.started)
    last = max(records, key=_end_of_last_rollout)
    return StepRecord(
        step=first.step,
        started=first.started,
        duration_s=max(record.started + record.duration_s for record in records) - first.started,
        num_rollouts=sum(record.num_rollouts for record in records),
        queued_s=sum(record.queued_s for record in records),
        generating_s=sum(record.generating_s for record in records),
        tool_s=sum(record.tool_s for record in records),
        num_starts=sum(record.num_starts for record in records),
        num_moves=sum(record.num_moves for record in records),
        num_moved_tokens=sum(record.num_moved_tokens for record in records),
        num_cancels=sum(record.num_cancels for record in records),
        num_evictions=sum(record.num_evictions for record in records),
        num_engines_lost=max(record.num_engines_lost for record in records),
        engines=tuple(_use(uses) for uses in zip(*(record.engines for record in records), strict=False)),
        critical_rollout=last.critical_rollout,
        critical_path=_shifted(last.critical_path, last.started - first.started),
        samples=tuple(_sample(samples) for samples in zip(*(record.samples for record in records), strict=False)),
    )


def _end_of_last_rollout(record: StepRecord) -> float:
    return record.started + (record.critical_path[-1].end_s if record.critical_path else 0.0)


def _shifted(path: Sequence[RolloutSpan], by_s: float) -> tuple[RolloutSpan, ...]:
    return tuple(replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s) for span in path)


def _use(uses: Sequence[EngineUse]) -> EngineUse:
    first, busy_s = uses[0], max(use.busy_s for use in uses)
    joined_s, left_s = min(use.joined_s for use in uses), max(use.left_s for use in uses)
    return replace(
        first,
        joined_s=joined_s,
        left_s=left_s,
        busy_s=busy_s,
        idle_s=left_s - joined_s - busy_s,
        mean_turns=sum(use.mean_turns for use in uses),
        peak_kv_share=max(use.peak_kv_share for use in uses),
        num_new_tokens=sum(use.num_new_tokens for use in uses),
        num_preemptions=max(use.num_preemptions for use in uses),
        num_recomputed_tokens=max(use.num_recomputed_tokens for use in uses),
        num_prefill_tokens=max(use.num_prefill_tokens for use in uses),
        num_generated_tokens=max(use.num_generated_tokens for use in uses),
    )


def _sample(samples: Sequence[EngineSample]) -> EngineSample:
    return replace(samples[0], num_turns=sum(sample.num_turns for sample in samples))
