"""A growing conversation, exact in tokens.

Invariant: ids are only appended. The model's own stay as the engine reported them; the environment's text is tokenized
once, alone, when it is appended. A request for the next turn sends `token_ids` to the engine. If another rollout
sampled the turn's first tokens, they end with these, which become part of the turn as they were reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rstar2.agent.chat_template import ChatFormat
from rstar2.agent.tool import ToolSchema
from rstar2.engine.protocol import Message, Tokenizer
from rstar2.records import Turn


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """The first tokens of a turn that another rollout sampled, as the engine reported them then."""

    token_ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()

    @classmethod
    def of(cls, turn: Turn, num_tokens: int) -> Self:
        return cls(turn.token_ids[:num_tokens], turn.log_probs[:num_tokens], turn.entropies[:num_tokens])


NOT_BEGUN = BegunTurn()


@dataclass(frozen=True, slots=True)
class Transcript:
    """The prompt, and every turn so far with what was appended to it."""

    prompt_text: str
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    begun: BegunTurn = NOT_BEGUN
    """The first tokens of the next turn; empty except in a branch that was forked inside a turn."""

    @classmethod
    def start(cls, chat: ChatFormat, question: str | Sequence[Message], tools: Sequence[ToolSchema]) -> Self:
        """A transcript that starts with a question, or with messages of which the last is the user's."""
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
        text = chat.conversation_text(messages, tools)
        return cls(text, tuple(chat.tokenizer.encode(text)))

    @property
    def token_ids(self) -> tuple[int, ...]:
        pieces = (ids for turn in self.turns for ids in (turn.token_ids, turn.appended_ids))
        return self.prompt_ids + tuple(token_id for ids in pieces for token_id in ids) + self.begun.token_ids

    def num_tokens_after(self, num_turns: int) -> int:
        """Tokens of all turns after the first `num_turns`, the model's and the environment's."""
        return sum(len(turn.token_ids) + len(turn.appended_ids) for turn in self.turns[num_turns:])

    def with_turn(self, turn: Turn) -> Self:
        return replace(self, turns=(*self.turns, turn), begun=NOT_BEGUN)

    def with_user_turn(self, chat: ChatFormat, content: str) -> Self:
        """The transcript with a user's turn after the last turn, to which nothing was appended yet."""
        last = self.turns[-1]
        assert not last.appended_ids
        return replace(self, turns=(*self.turns[:-1], with_user_text(last, chat, content.strip())))


def with_user_text(turn: Turn, chat: ChatFormat, content: str) -> Turn:
    """The turn, followed by a user turn with `content` and by the opening of the next assistant turn."""
    ended = turn.token_ids[-1:] == (chat.end_of_turn_id,)
    text = chat.user_turn_text(content, after_end_of_turn=ended)
    return replace(turn, appended_text=text, appended_ids=tuple(chat.user_turn_ids(text, after_end_of_turn=ended)))


class TextStream:
    """Decodes ids to text piece by piece, for display: a character comes out when its last token has arrived."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0
        self._context = 0
        """Decoding starts a little before what was not shown yet: some tokenizers drop a space at the very start."""

    def feed(self, token_ids: Sequence[int]) -> str:
        self._ids += token_ids
        known, text = self._decoded()
        if len(text) <= len(known) or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(known) :]

    def finish(self) -> str:
        """The rest, at the end of the turn. A character that lacks tokens becomes a replacement character."""
        if self._shown == len(self._ids):
            return ""
        known, text = self._decoded()
        self._context = self._shown = len(self._ids)
        return text[len(known) :]

    def _decoded(self) -> tuple[str, str]:
        """The text from the context on: what is shown of it, and all of it."""
        known = self._tokenizer.decode(self._ids[self._context : self._shown]) if self._shown else ""
        return known, self._tokenizer.decode(self._ids[self._context :])
