"""Summarises each rollout for a list: enough to sort, filter and count, and a hundredth of its size."""

from dataclasses import dataclass

from rstar2.records import ToolStatus, Trace
from rstar2.records.trace import GOLD_KEY
from rstar2.web.messages import user_text

MAX_ANSWER_CHARS = 120
MAX_QUESTION_CHARS = 200
MAX_NOTE_CHARS = 300
EVALUATION = "eval"
"""The prefix of the names of evaluation stages."""
ENVIRONMENT_FLAG = "environment:"
"""The prefix of the flag that names a rollout's environment."""


@dataclass(frozen=True, slots=True)
class CallSummary:
    """One tool call with a result."""

    status: ToolStatus
    wall_s: float
    num_attempts: int
    tool: str = ""
    """The tool's name; empty if the call could not be read."""


@dataclass(frozen=True, slots=True)
class Summary:
    id: str
    problem_id: str
    sample_index: int
    outcome: str
    verdict: str | None
    reward: float | None
    answer: str | None
    gold: str
    """The problem's gold answer; empty if there is none, or the run did not record it."""
    question: str
    num_turns: int
    num_tokens: int
    """Tokens that the model sampled."""
    num_calls: int
    num_errors: int
    seconds: float
    """Seconds spent in queues, generating and waiting for tools."""
    calls: tuple[CallSummary, ...] = ()
    stage: str = ""
    """The purpose of the rollout, if it is not training."""
    is_right: bool | None = None
    parts: tuple[tuple[str, float], ...] = ()
    """The named parts of the reward."""
    environment: str = ""
    """The name of the rollout's environment in the recipe; empty for the default."""
    note: str = ""
    unreadable: str = ""
    """Why the rollout cannot be read; empty if it can."""

    @property
    def flags(self) -> frozenset[str]:
        """The flags that the list can be filtered by."""
        flags = {self.outcome, self.verdict or self._grade, f"{ENVIRONMENT_FLAG}{self.environment}"}
        if self.num_errors:
            flags.add("tool_error")
        if not self.num_calls:
            flags.add("no_tool")
        if self.stage.startswith(EVALUATION):
            flags.add("evaluation")
        return frozenset(flags)

    @property
    def _grade(self) -> str:
        """The substitute for a verdict if there is only a reward."""
        return "ungraded" if self.is_right is None else "right" if self.is_right else "wrong"


def summarise(trace: Trace) -> Summary:
    return Summary(
        id=trace.id,
        problem_id=trace.problem_id,
        sample_index=trace.sample_index,
        outcome=trace.outcome.value,
        verdict=trace.verdict.value if trace.verdict else None,
        reward=trace.reward,
        answer=None if trace.answer is None else cut(trace.answer, MAX_ANSWER_CHARS),
        gold=cut(trace.metadata.get(GOLD_KEY, ""), MAX_ANSWER_CHARS),
        question=cut(user_text(trace.prompt_text), MAX_QUESTION_CHARS),
        num_turns=len(trace.turns),
        num_tokens=trace.num_sampled_tokens,
        num_calls=trace.num_tool_calls,
        num_errors=trace.num_tool_errors,
        seconds=sum(turn.queue_s + turn.generate_s + turn.tool_s for turn in trace.turns),
        stage=trace.metadata.get("stage", ""),
        calls=tuple(
            CallSummary(result.status, result.wall_s, result.num_attempts, call.name or "")
            for turn in trace.turns
            for call, result in zip(turn.calls, turn.results, strict=False)
        ),
        is_right=trace.is_right,
        parts=tuple(trace.score_parts.items()),
        environment=trace.environment,
        note=cut(trace.note, MAX_NOTE_CHARS),
    )


def unreadable(trace_id: str, problem_id: str, reason: str) -> Summary:
    """The summary of an invalid line: it is listed with the reason, never skipped."""
    return Summary(trace_id, problem_id, 0, "unreadable", None, None, None, "", "", 0, 0, 0, 0, 0.0, unreadable=reason)


def cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "…"
