"""Converts traces and groups into plain JSON values for the page. Pure."""

from collections.abc import Callable, Sequence
from typing import Any

from rstar2.records import Group, ToolCall, ToolResult, Trace, Turn
from rstar2.records.trace import END_OF_TURN_KEY, GOLD_KEY, SCORE_PREFIX
from rstar2.web.cells import TraceCell, call_arguments, call_text, cells_of, is_python, reply_after
from rstar2.web.messages import earlier_messages, user_text
from rstar2.web.selection import penalty_of, why
from rstar2.web.step_reader import RolloutRow

Texts = Callable[[Sequence[int]], list[str]]

NUM_SHOWN_CHARS = 700
"""The maximum length of each text in a view of many rollouts side by side; a single trace is shown in full."""


def row_json(row: RolloutRow, place: tuple[Group, int] | None) -> dict[str, Any]:
    """A rollout as a line of a list."""
    summary = row.summary
    return {
        "at": row.start,
        "id": summary.id,
        "problem_id": summary.problem_id,
        "sample_index": summary.sample_index,
        "outcome": summary.outcome,
        "verdict": summary.verdict,
        "is_right": summary.is_right,
        "reward": summary.reward,
        "parts": [list(part) for part in summary.parts],
        "environment": summary.environment,
        "note": summary.note,
        "answer": summary.answer,
        "gold": summary.gold,
        "question": summary.question,
        "num_turns": summary.num_turns,
        "num_tokens": summary.num_tokens,
        "num_calls": summary.num_calls,
        "num_errors": summary.num_errors,
        "seconds": summary.seconds,
        "stage": summary.stage,
        "unreadable": summary.unreadable,
        "flags": sorted(summary.flags),
        **(_place_json(*place) if place else {}),
    }


def group_row_json(number: int, group: Group, question: str | None) -> dict[str, Any]:
    """A group as a line of a step's list."""
    penalties = [p for p in (penalty_of(group, i) for i in range(len(group.trace_ids))) if p is not None]
    rewards = [reward for reward in group.rewards if reward is not None]
    return {
        "number": number,
        "id": group.id,
        "problem_id": group.problem_id,
        "question": question,
        "num_rollouts": len(group.trace_ids),
        "num_right": sum(group.is_right),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "num_kept": sum(selection == "kept" for selection in group.selections),
        "num_unscored": sum(selection == "unscored" for selection in group.selections),
        "is_dropped": "equal_rewards" in group.selections,
        "mean_penalty": sum(penalties) / len(penalties) if penalties else None,
    }


def trace_json(start: int, trace: Trace, place: tuple[Group, int] | None, texts: Texts | None) -> dict[str, Any]:
    """A single trace: every cell in full, every token with its numbers."""
    return {
        **_head_json(start, trace, place),
        "prompt": {"text": trace.prompt_text, **_tokens_json(trace.prompt_ids, texts)},
        "earlier": [[message.role, message.text] for message in earlier_messages(trace.prompt_text)],
        "turns": [
            {
                **_turn_json(turn, before, None),
                "tokens": {
                    **_tokens_json(turn.token_ids, texts),
                    "log_probs": list(turn.log_probs),
                    "entropies": list(turn.entropies),
                },
                "appended": {"text": turn.appended_text, **_tokens_json(turn.appended_ids, texts)},
            }
            for turn, before in zip(trace.turns, _befores(trace), strict=True)
        ],
    }


def short_trace_json(start: int, trace: Trace, place: tuple[Group, int] | None) -> dict[str, Any]:
    """A trace to show beside others: long texts cut in the middle, no tokens."""
    turns = zip(trace.turns, _befores(trace), strict=True)
    return {
        **_head_json(start, trace, place),
        "turns": [_turn_json(turn, before, NUM_SHOWN_CHARS) for turn, before in turns],
    }


def _befores(trace: Trace) -> list[str]:
    """The text before each turn: the prompt, the text appended to the previous turn, or a new segment's prompt."""
    texts = [trace.prompt_text, *(turn.appended_text for turn in trace.turns)]
    return [turn.prompt_text or text for turn, text in zip(trace.turns, texts, strict=False)]


def _head_json(start: int, trace: Trace, place: tuple[Group, int] | None) -> dict[str, Any]:
    return {
        "at": start,
        "id": trace.id,
        "problem_id": trace.problem_id,
        "group_id": trace.group_id,
        "sample_index": trace.sample_index,
        "step": trace.step,
        "model": trace.model,
        "weights": trace.weights,
        "question": user_text(trace.prompt_text),
        "outcome": trace.outcome.value,
        "verdict": trace.verdict.value if trace.verdict else None,
        "is_right": trace.is_right,
        "reward": trace.reward,
        "parts": [list(part) for part in trace.score_parts.items()],
        "format_penalty": trace.format_penalty,
        "environment": trace.environment,
        "answer": trace.answer,
        "gold": trace.metadata.get(GOLD_KEY, ""),
        "note": trace.note,
        "stage": trace.metadata.get("stage", ""),
        "metadata": [
            [name, text]
            for name, text in trace.metadata.items()
            if name not in (GOLD_KEY, END_OF_TURN_KEY) and not name.startswith(SCORE_PREFIX)
        ],
        "parent": trace.parent,
        "num_shared_turns": trace.num_shared_turns,
        "num_shared_tokens": trace.num_shared_tokens,
        "num_own_tokens": trace.num_generated_tokens,
        "num_tokens": trace.num_sampled_tokens,
        "num_calls": trace.num_tool_calls,
        "num_errors": trace.num_tool_errors,
        **(_place_json(*place) if place else {}),
    }


def _place_json(group: Group, index: int) -> dict[str, Any]:
    return {
        "selection": group.selections[index].value,
        "why": why(group, index),
        "advantage": group.advantages[index],
        "token_advantages": [list(run) for run in group.token_advantages[index]] if group.token_advantages else None,
        "error_penalty": group.error_penalties[index],
        "format_penalty": group.format_penalties[index],
    }


def _turn_json(turn: Turn, before: str, max_chars: int | None) -> dict[str, Any]:
    return {
        "cells": [_cell_json(cell, max_chars) for cell in cells_of(turn, before)],
        "reply": _cut(reply_after(turn), max_chars),
        "stop_reason": turn.stop_reason.value,
        "num_tokens": len(turn.token_ids),
        "policy_version": turn.policy_version,
        "queue_s": turn.queue_s,
        "generate_s": turn.generate_s,
        "tool_s": turn.tool_s,
    }


def _cell_json(cell: TraceCell, max_chars: int | None) -> dict[str, Any]:
    value: dict[str, Any] = {"kind": cell.kind.value, "text": _cut(cell.text, max_chars)}
    if cell.call is not None:
        value |= call_json(cell.call, max_chars)
    if cell.result is not None:
        value["result"] = result_json(cell.result, max_chars)
    return value


def call_json(call: ToolCall, max_chars: int | None = None) -> dict[str, Any]:
    return {
        "name": call.name,
        "is_python": is_python(call),
        "text": _cut(call_text(call), max_chars),
        "arguments": [[name, _cut(text, max_chars)] for name, text in call_arguments(call)],
    }


def result_json(result: ToolResult, max_chars: int | None = None) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "fault": result.fault.value,
        "text": _cut(result.text, max_chars),
        "wall_s": result.wall_s,
        "cpu_s": result.cpu_s,
        "num_attempts": result.num_attempts,
        "num_cut_chars": result.num_cut_chars,
    }


def _tokens_json(token_ids: Sequence[int], texts: Texts | None) -> dict[str, Any]:
    return {"ids": list(token_ids), "texts": texts(token_ids) if texts else None}


def _cut(text: str, max_chars: int | None) -> str:
    if max_chars is None or len(text) <= max_chars:
        return text
    head, tail = max_chars * 2 // 3, max_chars // 3
    return f"{text[:head]}\n⋯ {len(text) - head - tail:,} characters ⋯\n{text[-tail:]}"
