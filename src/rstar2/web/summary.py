"""What a list of rollouts says about each of them: enough to sort, filter and count, and a hundredth of its size."""

from dataclasses import dataclass

from rstar2.records import ToolStatus, Trace

MAX_ANSWER_CHARS = 120
EVALUATION = "eval"
"""How the stages of evaluations begin."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call that came back."""

    status: ToolStatus
    wall_s: float
    num_attempts: int


@dataclass(frozen=True, slots=True)
class Summary:
    id: str
    problem_id: str
    sample_index: int
    outcome: str
    verdict: str | None
    reward: float | None
    answer: str | None
    num_turns: int
    num_tokens: int
    """Sampled by the model."""
    num_calls: int
    num_errors: int
    seconds: float
    """Spent in queues, generating and waiting for tools."""
    calls: tuple[Call, ...] = ()
    stage: str = ""
    """What it was rolled out for, where that is not training."""
    unreadable: str = ""
    """Why it cannot be read, if it cannot."""

    @property
    def flags(self) -> frozenset[str]:
        """What the list can be filtered by."""
        flags = {self.outcome, self.verdict or "ungraded"}
        if self.num_errors:
            flags.add("tool_error")
        if not self.num_calls:
            flags.add("no_tool")
        if self.stage.startswith(EVALUATION):
            flags.add("evaluation")
        return frozenset(flags)


def summarise(trace: Trace) -> Summary:
    answer = trace.answer
    if answer is not None and len(answer) > MAX_ANSWER_CHARS:
        answer = answer[:MAX_ANSWER_CHARS] + "…"
    return Summary(
        id=trace.id,
        problem_id=trace.problem_id,
        sample_index=trace.sample_index,
        outcome=trace.outcome.value,
        verdict=trace.verdict.value if trace.verdict else None,
        reward=trace.reward,
        answer=answer,
        num_turns=len(trace.turns),
        num_tokens=trace.num_sampled_tokens,
        num_calls=trace.num_tool_calls,
        num_errors=trace.num_tool_errors,
        seconds=sum(turn.queue_s + turn.generate_s + turn.tool_s for turn in trace.turns),
        stage=trace.metadata.get("stage", ""),
        calls=tuple(Call(result.status, result.wall_s, result.num_attempts) for result in trace.results),
    )


def unreadable(trace_id: str, problem_id: str, reason: str) -> Summary:
    """A line that is no trace: it is listed with the reason, never skipped."""
    return Summary(trace_id, problem_id, 0, "unreadable", None, None, None, 0, 0, 0, 0, 0.0, unreadable=reason)
