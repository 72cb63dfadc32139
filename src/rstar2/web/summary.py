"""What a list of rollouts says about each of them: enough to sort, filter and count, and a hundredth of its size."""

from dataclasses import dataclass

from rstar2.records import ToolStatus, Trace
from rstar2.records.trace import GOLD_KEY

MAX_ANSWER_CHARS = 120
MAX_QUESTION_CHARS = 200
EVALUATION = "eval"
"""How the stages of evaluations begin."""


@dataclass(frozen=True, slots=True)
class CallSummary:
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
    gold: str
    """The answer that the problem wants; empty if it has none, or the run did not record it."""
    question: str
    num_turns: int
    num_tokens: int
    """Sampled by the model."""
    num_calls: int
    num_errors: int
    seconds: float
    """Spent in queues, generating and waiting for tools."""
    calls: tuple[CallSummary, ...] = ()
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
    return Summary(
        id=trace.id,
        problem_id=trace.problem_id,
        sample_index=trace.sample_index,
        outcome=trace.outcome.value,
        verdict=trace.verdict.value if trace.verdict else None,
        reward=trace.reward,
        answer=None if trace.answer is None else cut(trace.answer, MAX_ANSWER_CHARS),
        gold=cut(trace.metadata.get(GOLD_KEY, ""), MAX_ANSWER_CHARS),
        question=cut(question_in(trace.prompt_text), MAX_QUESTION_CHARS),
        num_turns=len(trace.turns),
        num_tokens=trace.num_sampled_tokens,
        num_calls=trace.num_tool_calls,
        num_errors=trace.num_tool_errors,
        seconds=sum(turn.queue_s + turn.generate_s + turn.tool_s for turn in trace.turns),
        stage=trace.metadata.get("stage", ""),
        calls=tuple(CallSummary(result.status, result.wall_s, result.num_attempts) for result in trace.results),
    )


def unreadable(trace_id: str, problem_id: str, reason: str) -> Summary:
    """A line that is no trace: it is listed with the reason, never skipped."""
    return Summary(trace_id, problem_id, 0, "unreadable", None, None, None, "", "", 0, 0, 0, 0, 0.0, unreadable=reason)


def question_in(prompt_text: str) -> str:
    """What the user asked, without the system text and the template around it, where these can be separated."""
    _, found, rest = prompt_text.rpartition("<|im_start|>user\n")
    return rest.partition("<|im_end|>")[0] if found else prompt_text


def cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "…"
