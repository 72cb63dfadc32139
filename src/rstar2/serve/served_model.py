"""The model that a server offers: its engine, its chat format and its limits."""

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
    """The name that callers use."""
    context_tokens: int | None = None
    """The maximum length of a sequence; None if unknown."""

    @property
    def is_exact(self) -> bool:
        """Whether the tokenizer is the model's own. A server that speaks only text has unknown token ids."""
        return not isinstance(self.chat.tokenizer, PlainTextTokenizer)

    @property
    def scoring(self) -> ScoringEngine | None:
        """The engine, if it can score given tokens."""
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
        """The ids of control tokens, which texts leave out."""
        encoded = [self.chat.tokenizer.encode(token) for token in self.chat.tokenizer.control_tokens]
        return frozenset(ids[0] for ids in encoded if len(ids) == 1) | frozenset(self.chat.stop_token_ids)
