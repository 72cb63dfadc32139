"""`[model]`: which weights are trained or asked, and in what form they are held."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rstar2.config.section import Section

TINY_PREFIX = "tiny:"
TINY_NAMES = ("tiny:llama", "tiny:qwen3")


class Tiny(Section):
    """`[model.tiny]`: the sizes of a model that is built from nothing, with its own tokenizer."""

    num_layers: int = Field(4, ge=1, description="Transformer layers. Few: a CPU pays for each in every token.")
    hidden_size: int = Field(
        192, ge=8, description="Width of the residual stream. With 4 layers, 192 makes under 3 million parameters."
    )
    num_heads: int = Field(6, ge=1, description="Attention heads; must divide hidden_size. 6 makes heads of width 32.")
    num_kv_heads: int = Field(
        2, ge=1, description="Key and value heads; must divide num_heads. 2 keeps the KV cache at a third."
    )
    vocab_size: int = Field(
        512,
        ge=300,
        description="Tokens of the vocabulary: 256 bytes, the special tokens, and merges learnt from the format data. "
        "Small, because on a CPU the output layer would otherwise cost more than all the others.",
    )


class Lora(Section):
    """`[model.lora]`: train low-rank adapters in place of all weights. Leave the table out for full fine-tuning."""

    rank: int = Field(
        32, description="Rank of the adapters: more learn more, and cost more memory. 32 is the common middle."
    )
    alpha: float = Field(
        64.0, gt=0, description="The adapters' output is scaled by alpha / rank. Twice the rank is the common choice."
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of adapter inputs dropped in training. 0, because dropout would make the trainer's "
        "log-probabilities differ from the engine's.",
    )
    target_modules: tuple[str, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        strict=False,
        min_length=1,
        description="Names of the linear layers that get adapters. All of a Llama or Qwen block: adapters on attention "
        "alone learn less.",
    )

    @field_validator("rank")
    @classmethod
    def _rank_is_positive(cls, rank: int) -> int:
        if rank < 1:
            raise ValueError(f"must be at least 1, not {rank}; for full fine-tuning leave [model.lora] out")
        return rank


class ModelSection(Section):
    """`[model]`: which weights are trained or asked, and in what form they are held."""

    name: str = Field(
        min_length=1,
        examples=["smollm2-135m"],
        description="A name that `rstar2 models` knows, a local Hugging Face folder (of a model, or of adapters), "
        "OWNER/NAME[@REVISION] on the hub, or tiny:llama or tiny:qwen3 for a small model built from nothing. Where "
        "nothing is trained, auto is the only model of a server, or the agent that comes with rstar2.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Number format of the weights. auto is bfloat16 on a GPU, where it halves memory, and float32 on a "
        "CPU, where training in bfloat16 is slow. Generation alone can be faster in bfloat16 there.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model lives. auto uses a GPU if there is one."
    )
    context_tokens: int = Field(
        32_768,
        ge=16,
        description="The longest sequence, prompt and response together, that the model is run on, in tokens. The "
        "default is the native context of Qwen3; give the model's own if it is shorter.",
    )
    tiny: Tiny | None = Field(None, description="Sizes of a model built from nothing; only with a tiny: name.")
    lora: Lora | None = Field(None, description="Low-rank adapters. If left out, all weights are trained.")

    @model_validator(mode="before")
    @classmethod
    def _tiny_names_bring_their_sizes(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and str(raw.get("name", "")).startswith(TINY_PREFIX) and "tiny" not in raw:
            return {**raw, "tiny": {}}
        return raw

    @field_validator("name")
    @classmethod
    def _tiny_architecture_exists(cls, name: str) -> str:
        if name.startswith(TINY_PREFIX) and name not in TINY_NAMES:
            raise ValueError(f"must be {' or '.join(TINY_NAMES)} for a model built from nothing, not {name!r}")
        return name
