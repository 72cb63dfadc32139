"""A trace: everything that happened in one rollout, exact in tokens.

Invariant: `prompt_ids`, then for each turn its `token_ids` (sampled by the model) and its `appended_ids` (put there by
the environment: separators, tool responses, the opening of the next assistant turn), in order, are the ids that the
engine saw. No text is ever tokenized a second time; texts are kept beside the ids for people to read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from rstar2.records.tool import ToolCall, ToolResult, count_tool_calls

TRACE_SCHEMA_VERSION = 1
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
_TAG = re.compile(f"{ANSWER_OPEN}|{ANSWER_CLOSE}")


class Outcome(StrEnum):
    """Why a rollout ended."""

    ANSWERED = "answered"
    """The model ended its turn without asking for a tool; whether it answered rightly is the verdict."""
    TRUNCATED = "truncated"
    """The token budget ran out. Scored 0, and kept in training."""
    TURN_LIMIT = "turn_limit"
    """The model still asked for tools when its turns were used up."""
    INFRASTRUCTURE_FAULT = "infrastructure_fault"
    """Something of ours failed for good. Never scored."""


class Verdict(StrEnum):
    """What the grader said."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """No answer block in the model's own tokens."""
    UNDECIDED = "undecided"
    """The grader could not decide within its limits; the rollout is left out, never silently scored 0."""


class StopReason(StrEnum):
    """Why the engine stopped generating a turn."""

    END_OF_TURN = "end_of_turn"
    TOKEN_LIMIT = "token_limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn, the calls it made and what the environment appended after it."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    """The log-probability of each sampled token under the policy that sampled it; empty if the engine reports none."""
    text: str
    stop_reason: StopReason
    entropies: tuple[float, ...] = ()
    """The entropy of the distribution that each token was drawn from, in nats; empty unless asked for."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    appended_ids: tuple[int, ...] = ()
    appended_text: str = ""
    policy_version: int = 0
    """The optimizer step whose weights sampled this turn."""
    queue_s: float = 0.0
    """Seconds that the turn waited for a place on an engine."""
    generate_s: float = 0.0
    """Seconds from the request to the last token, without `queue_s`."""
    tool_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("log_probs", "entropies"):
            values = getattr(self, name)
            if values and len(values) != len(self.token_ids):
                raise ValueError(f"turn has {len(self.token_ids)} token ids but {len(values)} {name}")
        if len(self.results) > len(self.calls):
            raise ValueError(f"turn has {len(self.calls)} tool calls but {len(self.results)} results")


GOLD_KEY = "gold"
"""The key of the gold answer in a trace's metadata, for people who read the trace."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One rollout of one problem."""

    id: str
    problem_id: str
    prompt_ids: tuple[int, ...]
    prompt_text: str
    turns: tuple[Turn, ...]
    outcome: Outcome
    group_id: str = ""
    sample_index: int = 0
    step: int = 0
    model: str = ""
    weights: str = ""
    """The trainer's name of the weights that sampled the trace; empty where they changed during it."""
    answer: str | None = None
    """The content of the last answer block of the model's own text."""
    verdict: Verdict | None = None
    reward: float | None = None
    note: str = ""
    """Why it ended as it did, where the outcome alone does not say."""
    metadata: dict[str, str] = field(default_factory=dict)
    schema_version: int = TRACE_SCHEMA_VERSION

    def _pieces(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        yield self.prompt_ids, False
        for turn in self.turns:
            yield turn.token_ids, True
            yield turn.appended_ids, False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every id that the engine saw, in order."""
        return tuple(token for ids, _ in self._pieces() for token in ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """True on all and only the tokens that the model sampled; aligned with `token_ids`."""
        return tuple(own for ids, own in self._pieces() for _ in ids)

    @property
    def log_probs(self) -> tuple[float, ...]:
        """The engine's log-probabilities aligned with `token_ids`; 0 where the model did not sample."""
        values: list[float] = [0.0] * len(self.prompt_ids)
        for turn in self.turns:
            values += turn.log_probs or (0.0,) * len(turn.token_ids)
            values += (0.0,) * len(turn.appended_ids)
        return tuple(values)

    @property
    def text(self) -> str:
        """The conversation as it was rendered."""
        return self.prompt_text + "".join(turn.text + turn.appended_text for turn in self.turns)

    @property
    def turn_texts(self) -> tuple[str, ...]:
        """The model's own text alone, turn by turn. Graders look for the answer in it."""
        return tuple(turn.text for turn in self.turns)

    @property
    def response_text(self) -> str:
        """The model's own text alone, all turns joined."""
        return "".join(self.turn_texts)

    @property
    def num_response_tokens(self) -> int:
        """Tokens after the prompt, the model's and the environment's: what the response limit counts."""
        return sum(len(turn.token_ids) + len(turn.appended_ids) for turn in self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(result for turn in self.turns for result in turn.results)

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def own_calls(self) -> tuple[int, int]:
        """Calls that came back and that the policy answers for, and how many of them failed: what every share of tool
        errors is made of."""
        return count_tool_calls(result.status for result in self.results)

    @property
    def num_tool_errors(self) -> int:
        """Calls that failed through the policy's fault."""
        return self.own_calls[1]


def answer_blocks(turn_text: str) -> list[tuple[int, int]]:
    """Start and end of the content of each closed block, without its tags. Grading, penalties and display all ask here.
    A block needs both of its exact tags in the same turn, and a second `<answer>` before the `</answer>` starts it
    anew. Linear in the text."""
    blocks, start = list[tuple[int, int]](), None
    for tag in _TAG.finditer(turn_text):
        if tag[0] == ANSWER_OPEN:
            start = tag.end()
        elif start is not None:
            blocks.append((start, tag.start()))
            start = None
    return blocks
