"""A trace: everything that happened in one rollout, exact in tokens.

Invariant: `prompt_ids`, then for each turn its `token_ids` (sampled by the model) and its `appended_ids` (put there by
the environment: separators, tool responses, the opening of the next assistant turn), in order, are the ids that the
engine saw. No text is ever tokenized a second time; texts are kept beside the ids for people to read. A program that
edits its conversation makes segments: a turn with `prompt_ids` starts a new one, for which the same holds.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from rstar2.records.tool import ToolCall, ToolResult, count_tool_calls

TRACE_SCHEMA_VERSION = 1
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
_TAG = re.compile(f"{ANSWER_OPEN}|{ANSWER_CLOSE}")
_THOUGHT_END = re.compile(r"</(?:reason|think)>")


class Outcome(StrEnum):
    """Why a rollout ended."""

    ANSWERED = "answered"
    """The model ended its turn without asking for a tool, or its call ended the episode; whether it answered rightly is
    the verdict."""
    TRUNCATED = "truncated"
    """The token budget ran out. Scored 0, and kept in training."""
    TURN_LIMIT = "turn_limit"
    """The model still asked for tools when its turns were used up."""
    INFRASTRUCTURE_FAULT = "infrastructure_fault"
    """The engine, the sandbox or the environment failed, after all retries. Never scored."""
    BEYOND_BUDGET = "beyond_budget"
    """The rollout was not sampled, because its tree had spent its budget of generated tokens. It has no turns, and is
    never scored."""

    @property
    def is_scored(self) -> bool:
        """Whether a rollout with this outcome can have a reward."""
        return self not in (Outcome.INFRASTRUCTURE_FAULT, Outcome.BEYOND_BUDGET)


class Verdict(StrEnum):
    """The grader's verdict on a rollout."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """The model's own tokens hold no answer block."""
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
    prompt_ids: tuple[int, ...] = ()
    """The ids that the engine saw before a turn that starts a new segment; empty if the turn continues the one
    before."""
    prompt_text: str = ""
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
END_OF_TURN_KEY = "end_of_turn"
"""The key, in a trace's metadata, of the control token that ended the last turn and is not part of the text."""
THRESHOLD_KEY = "success_threshold"
"""The key, in a trace's metadata, of the least reward of a success, if that is not the full reward."""
FULL_REWARD = 1.0
SCORE_PREFIX = "score/"
"""The prefix of the keys of the reward's named parts in a trace's metadata."""


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
    """The trainer's id of the weights that sampled the trace; empty if they changed during it."""
    answer: str | None = None
    """The content of the last answer block of the model's own text; in a harness, the value that the program
    returned."""
    verdict: Verdict | None = None
    reward: float | None = None
    format_penalty: float | None = None
    """`p_format` as the environment computed it; None if it is computed from the answer blocks."""
    environment: str = ""
    """The name of the problem's environment in the recipe; empty for the recipe's default."""
    parent: str = ""
    """The rollout from which this one was forked, in a tree; empty for one that began at the prompt."""
    num_shared_turns: int = 0
    """How many of the turns are the parent's."""
    num_shared_tokens: int = 0
    """How many sampled tokens of the next turn are the parent's, if the rollout was forked inside that turn."""
    note: str = ""
    """Why the rollout ended, if the outcome alone does not say."""
    metadata: dict[str, str] = field(default_factory=dict)
    schema_version: int = TRACE_SCHEMA_VERSION

    def _pieces(self) -> Iterator[tuple[tuple[int, ...], bool]]:
        yield self.prompt_ids, False
        for turn in self.turns:
            yield turn.prompt_ids, False
            yield turn.token_ids, True
            yield turn.appended_ids, False

    @property
    def segments(self) -> tuple[Self, ...]:
        """One trace for each conversation that the engine saw: a single one, unless a program cut, edited or branched
        it. Each has its own turns, so together they have every turn once."""
        starts = [number for number, turn in enumerate(self.turns) if turn.prompt_ids]
        if not starts:
            return (self,)
        first = replace(self, turns=self.turns[: starts[0]])
        ends = [*starts[1:], len(self.turns)]
        return first, *(self._segment(start, end) for start, end in zip(starts, ends, strict=True))

    def _segment(self, start: int, end: int) -> Self:
        opening = self.turns[start]
        turns = (replace(opening, prompt_ids=(), prompt_text=""), *self.turns[start + 1 : end])
        return replace(self, prompt_ids=opening.prompt_ids, prompt_text=opening.prompt_text, turns=turns)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every id that the engine saw, in order, segment after segment."""
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
            values += (0.0,) * len(turn.prompt_ids)
            values += turn.log_probs or (0.0,) * len(turn.token_ids)
            values += (0.0,) * len(turn.appended_ids)
        return tuple(values)

    @property
    def text(self) -> str:
        """The conversation as it was rendered."""
        return self.prompt_text + "".join(turn.prompt_text + turn.text + turn.appended_text for turn in self.turns)

    @property
    def turn_texts(self) -> tuple[str, ...]:
        """The model's own text alone, turn by turn. Graders look for the answer in it."""
        return tuple(turn.text for turn in self.turns)

    @property
    def final_text(self) -> str:
        """The model's final message to its user: the text after its last thought, without answer tags."""
        said = self.response_text.removesuffix(self.metadata.get(END_OF_TURN_KEY, ""))
        text = _TAG.sub("", after_thought(said))
        return said if text == said else text.strip()

    @property
    def response_text(self) -> str:
        """The model's own text alone, all turns joined."""
        return "".join(self.turn_texts)

    @property
    def success_threshold(self) -> float:
        """`algo.success_threshold` of the recipe that the rollout was judged with."""
        return float(self.metadata.get(THRESHOLD_KEY, FULL_REWARD))

    @property
    def is_right(self) -> bool | None:
        """Whether the rollout is a success, for selection, accuracy and pass@k alike. None if the trace was not
        judged."""
        return is_success(self.verdict, self.reward, self.success_threshold)

    @property
    def score_parts(self) -> dict[str, float]:
        """The named parts of the reward."""
        return {
            key.removeprefix(SCORE_PREFIX): float(text)
            for key, text in self.metadata.items()
            if key.startswith(SCORE_PREFIX)
        }

    @property
    def num_response_tokens(self) -> int:
        """The number of tokens after the prompt, the model's and the environment's, which the response limit counts."""
        return sum(len(turn.token_ids) + len(turn.appended_ids) for turn in self.turns)

    @property
    def num_sampled_tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """The turns that this rollout itself ended: all, unless it was forked. The first of them begins with
        `num_shared_tokens` tokens of the parent."""
        return self.turns[self.num_shared_turns :]

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens sampled for this rollout, without those that it shares with its parent."""
        return sum(len(turn.token_ids) for turn in self.own_turns) - self.num_shared_tokens

    @property
    def results(self) -> tuple[ToolResult, ...]:
        return tuple(result for turn in self.turns for result in turn.results)

    @property
    def num_tool_calls(self) -> int:
        return sum(len(turn.calls) for turn in self.turns)

    @property
    def own_calls(self) -> tuple[int, int]:
        """How many returned calls the policy is responsible for, and how many of them failed. Every share of tool
        errors is computed from these."""
        return count_tool_calls(result.status for result in self.results)

    @property
    def num_tool_errors(self) -> int:
        """Calls that failed through the policy's fault."""
        return self.own_calls[1]


def is_success(verdict: Verdict | None, reward: float | None, threshold: float = FULL_REWARD) -> bool | None:
    """Whether a rollout is a success: by the environment's verdict, or without one by whether the reward reaches the
    threshold. None without either."""
    if verdict is None or verdict is Verdict.UNDECIDED:
        return None if reward is None else reward >= threshold
    return verdict is Verdict.RIGHT


def after_thought(said: str) -> str:
    """The text after the end of the last thought."""
    return _THOUGHT_END.split(said)[-1]


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
