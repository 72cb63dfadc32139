"""The sizes of a Llama, Qwen2 or Qwen3 model that its memory and its work depend on, from its config. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ModelSizes:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    is_tied: bool
    """Whether the head is the embedding."""
    has_qk_norms: bool

    @classmethod
    def of(cls, config: Any) -> Self:
        """The sizes in a config of `transformers`."""
        return cls(
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocab=config.vocab_size,
            is_tied=config.tie_word_embeddings,
            has_qk_norms=config.model_type == "qwen3",
        )

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def qkv(self) -> int:
        """Queries, keys and values of one token."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of one block."""
        keys = self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    def num_projected(self, names: Iterable[str] | None = None) -> int:
        """The number of weights in the linear layers of these names, or in all linear layers without names, over all
        blocks."""
        shapes = self.projections
        chosen = shapes if names is None else [name for name in names if name in shapes]
        return self.layers * sum(shapes[name][0] * shapes[name][1] for name in chosen)

    def num_adapted(self, names: Iterable[str], rank: int) -> int:
        """The number of weights in the adapters of these linear layers."""
        shapes = self.projections
        return self.layers * rank * sum(sum(shapes[name]) for name in names if name in shapes)

    @property
    def num_embedded(self) -> int:
        return self.vocab * self.hidden

    @property
    def num_params(self) -> int:
        """The number of parameters without biases, which are less than a thousandth."""
        norms = self.layers * 2 * self.hidden + self.hidden
        return self.num_projected() + self.num_embedded * (1 if self.is_tied else 2) + norms
