"""The model that a server offers: its engine, its way of writing, and what its callers may ask of it."""

from dataclasses import dataclass

from rstar2.agent import ChatFormat
from rstar2.engine import Engine
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.protocol import ScoringEngine


@dataclass(frozen=True, slots=True)
class ServedModel:
    engine: Engine
    chat: ChatFormat
    name: str
    """What callers name it."""
    context_tokens: int | None = None
    """The longest sequence; None if it is not known."""

    @property
    def is_exact(self) -> bool:
        """Whether the tokenizer is the model's own. The ids of a server that speaks only text are unknown."""
        return not isinstance(self.chat.tokenizer, PlainTextTokenizer)

    @property
    def scoring(self) -> ScoringEngine | None:
        """The engine, if it can say how likely given tokens are."""
        return self.engine if isinstance(self.engine, ScoringEngine) else None

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence that the context and the KV cache hold."""
        load = self.engine.load()
        limits = [self.context_tokens] if self.context_tokens else []
        if load.num_blocks:
            limits.append(load.num_blocks * load.block_size + 1)
        return min(limits, default=None)

    def control_ids(self) -> frozenset[int]:
        """The ids of tokens that mean structure: texts leave them out."""
        encoded = [self.chat.tokenizer.encode(token) for token in self.chat.tokenizer.control_tokens]
        return frozenset(ids[0] for ids in encoded if len(ids) == 1) | frozenset(self.chat.stop_token_ids)
