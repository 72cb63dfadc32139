"""An engine with a scripted policy: a Python function, or a file of replies. For tests and demonstrations.

Invariant: the same prompt in the same session gets the same reply, and every token has the log-probability 0.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar2.engine.protocol import Chunk, EngineLoad, Sampling, Tokenizer
from rstar2.errors import UserError
from rstar2.records import StopReason

TOKENS_PER_CHUNK = 8
"""A reply has more than one chunk, so that consumers of a stream are tested."""

_SEPARATOR = re.compile(r"^={3,}[ \t]*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ScriptedPrompt:
    """What a scripted policy may look at."""

    session: str
    text: str
    turn: int
    """How many turns of this session came before."""


Policy = Callable[[ScriptedPrompt], str]


def read_script(path: Path) -> Policy:
    """Replies from a text file, one a turn, separated by lines of three or more equals signs."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the script {path} cannot be read: {error}") from None
    return replies([reply.removesuffix("\n") for reply in _SEPARATOR.split(text)], str(path))


def replies(texts: Sequence[str], name: str = "the script") -> Policy:
    """The policy that says one text after the other."""

    def policy(prompt: ScriptedPrompt) -> str:
        if prompt.turn >= len(texts):
            raise UserError(f"{name} has {len(texts)} replies, but turn {prompt.turn + 1} was asked for: add one")
        return texts[prompt.turn]

    return policy


class ScriptedEngine:
    """Satisfies `Engine`. A reply is tokenized, closed with `end_of_turn_id`, and cut at the limit."""

    def __init__(self, policy: Policy, tokenizer: Tokenizer, end_of_turn_id: int) -> None:
        self._policy = policy
        self._tokenizer = tokenizer
        self._end_of_turn_id = end_of_turn_id
        self._prompt_lengths: dict[str, list[int]] = {}
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._num_prefill_tokens = 0
        self._num_generated_tokens = 0

    async def generate(
        self,
        session: str,
        token_ids: Sequence[int],
        sampling: Sampling,  # noqa: ARG002
        max_tokens: int,
    ) -> AsyncIterator[Chunk]:
        text = self._tokenizer.decode(token_ids)
        reply = self._policy(ScriptedPrompt(session, text, self._turn(session, len(token_ids))))
        full = (*self._tokenizer.encode(reply), self._end_of_turn_id)
        kept = full[:max_tokens]
        self._num_prefill_tokens += len(token_ids)
        self._running.add(session)
        self._cancelled.discard(session)
        try:
            for start in range(0, len(kept), TOKENS_PER_CHUNK):
                await asyncio.sleep(0)
                if session in self._cancelled:
                    yield Chunk((), (), stop_reason=StopReason.CANCELLED)
                    return
                ids = kept[start : start + TOKENS_PER_CHUNK]
                self._num_generated_tokens += len(ids)
                stop_reason = None
                if start + len(ids) == len(kept):
                    stop_reason = StopReason.END_OF_TURN if len(kept) == len(full) else StopReason.TOKEN_LIMIT
                yield Chunk(ids, (0.0,) * len(ids), stop_reason=stop_reason)
        finally:
            self._running.discard(session)

    def _turn(self, session: str, prompt_length: int) -> int:
        """The number of the turn in its session, counted by prompts, so that a retried turn is the same turn."""
        lengths = self._prompt_lengths.setdefault(session, [])
        if prompt_length not in lengths:
            lengths.append(prompt_length)
        return lengths.index(prompt_length)

    def load(self) -> EngineLoad:
        return EngineLoad.with_unknown_cache(len(self._running), self._num_prefill_tokens, self._num_generated_tokens)

    async def cancel(self, session: str) -> None:
        if session in self._running:
            self._cancelled.add(session)

    async def release(self, session: str) -> None:
        self._prompt_lengths.pop(session, None)
        self._cancelled.discard(session)

    async def close(self) -> None:
        self._prompt_lengths.clear()
