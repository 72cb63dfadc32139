"""Classifies what the model does after a failed tool call. Pure; from typed results, never from words in the model's
text.

An error is a turn of which at least one call failed through the model's fault; the calls of one turn are written before
any of their results are seen, so they are one attempt. The reaction is read from the next turn that calls again.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rstar2.records import Fault, Outcome, ToolCall, ToolResult, ToolStatus, Trace, Turn

NEARLY_SAME = 0.9
"""Two codes are nearly the same from this similarity on: 2 M / (A + B), for M of their A and B tokens in common."""
MAX_COMPARED_TOKENS = 2000
"""How many tokens of each code are compared. Comparing is quadratic, and 2,000 tokens are some 200 lines."""


class Reaction(StrEnum):
    FIXED = "fixed"
    """The next calls all succeed."""
    REPEATED = "repeated"
    """A next call fails with the same or nearly the same code, or with the same error."""
    NEW_ERROR = "new_error"
    """A next call fails, with other code and in another way."""
    GAVE_UP = "gave_up"
    """The model ended its turn without another call."""
    CUT_OFF = "cut_off"
    """A limit or our own fault ended the rollout before its reaction could be seen."""


@dataclass(frozen=True, slots=True)
class ErrorReaction:
    trace_id: str
    turn: int
    """The number, from 0, of the turn whose call failed."""
    status: ToolStatus
    """The status of the turn's first failed call."""
    reaction: Reaction


@dataclass(frozen=True, slots=True)
class ReactionCounts:
    num_errors: int
    counts: dict[Reaction, int]
    by_status: dict[ToolStatus, dict[Reaction, int]]
    """The counts for each status that occurs."""

    def share(self, reaction: Reaction) -> float:
        return self.counts[reaction] / self.num_errors if self.num_errors else 0.0


def find_reactions(trace: Trace) -> Iterator[ErrorReaction]:
    for index, turn in enumerate(trace.turns):
        failed = _failed(turn)
        if failed:
            reaction = _reaction(failed, trace.turns[index + 1 :], trace.outcome)
            yield ErrorReaction(trace.id, index, failed[0][1].status, reaction)


def count_reactions(reactions: Iterable[ErrorReaction]) -> ReactionCounts:
    counts = dict.fromkeys(Reaction, 0)
    by_status: dict[ToolStatus, dict[Reaction, int]] = {}
    for found in reactions:
        counts[found.reaction] += 1
        by_status.setdefault(found.status, dict.fromkeys(Reaction, 0))[found.reaction] += 1
    ordered = {status: by_status[status] for status in ToolStatus if status in by_status}
    return ReactionCounts(sum(counts.values()), counts, ordered)


def _failed(turn: Turn) -> list[tuple[ToolCall, ToolResult]]:
    pairs = zip(turn.calls, turn.results, strict=False)
    return [(call, result) for call, result in pairs if result.status.is_tool_error]


def _reaction(failed: Sequence[tuple[ToolCall, ToolResult]], later: Sequence[Turn], outcome: Outcome) -> Reaction:
    turn = next((turn for turn in later if turn.calls), None)
    if turn is None:
        return Reaction.GAVE_UP if later and outcome is Outcome.ANSWERED else Reaction.CUT_OFF
    failed_again = _failed(turn)
    if any(_is_same(old, new) for old in failed for new in failed_again):
        return Reaction.REPEATED
    if failed_again:
        return Reaction.NEW_ERROR
    # The next calls were never run, or not through the model's fault: whether they were a fix is not known.
    is_known = len(turn.results) == len(turn.calls) and all(r.fault is Fault.NONE for r in turn.results)
    return Reaction.FIXED if is_known else Reaction.CUT_OFF


def _is_same(old: tuple[ToolCall, ToolResult], new: tuple[ToolCall, ToolResult]) -> bool:
    return error_signature(old[1]) == error_signature(new[1]) or are_nearly_same(code_of(old[0]), code_of(new[0]))


_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_CODE_TOKEN = re.compile(r"\w+|[^\w\s]")


def error_signature(result: ToolResult) -> tuple[ToolStatus, str]:
    """The status and the last line of the message, where Python names the exception, with all numbers made equal."""
    lines = result.text.strip().splitlines()
    return result.status, _NUMBER.sub("0", lines[-1].strip()) if lines else ""


def code_of(call: ToolCall) -> str:
    """The program of a call: its argument `code`, or for other tools the whole call."""
    code = call.arguments.get("code")
    return code if isinstance(code, str) else call.raw


def are_nearly_same(first: str, second: str) -> bool:
    """Whether two codes are nearly the same in names, numbers and signs; spaces and line breaks do not count."""
    old, new = (_CODE_TOKEN.findall(code)[:MAX_COMPARED_TOKENS] for code in (first, second))
    matcher = difflib.SequenceMatcher[str](None, old, new, autojunk=False)
    # The first two are cheap upper bounds of the third: most pairs are far apart.
    bounds = matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio
    return all(bound() >= NEARLY_SAME for bound in bounds)
