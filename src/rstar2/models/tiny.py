"""A model of a few million parameters, built from nothing: a tokenizer trained on given texts, and random weights.

The result is a plain Hugging Face folder like any other, so nothing else needs to know that the model is tiny.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = (
    *("<reason>", "</reason>", "<answer>", "</answer>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
"""Tags that are one token each, as in Qwen3's vocabulary, so that the model need not spell them."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinySizes:
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    context_tokens: int


def build_tiny(folder: Path, architecture: str, sizes: TinySizes, texts: Iterable[str], seed: int) -> None:
    """Write a model folder. `architecture` is llama or qwen3; the tokenizer is trained on `texts`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    makers: dict[str, tuple[Any, Any]] = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    if architecture not in makers:
        raise UserError(f"a tiny model is llama or qwen3, not {architecture!r}")
    make_config, make_model = makers[architecture]
    tokenizer = _train_tokenizer(texts, sizes.vocab_size)
    end_of_turn_id = tokenizer.token_to_id("<|im_end|>")
    config = make_config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=sizes.hidden_size,
        intermediate_size=intermediate_size(sizes.hidden_size),
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_kv_heads,
        head_dim=sizes.hidden_size // sizes.num_heads,
        max_position_embeddings=sizes.context_tokens,
        tie_word_embeddings=True,
        eos_token_id=end_of_turn_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(config)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": sizes.context_tokens,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")


def intermediate_size(hidden_size: int) -> int:
    """The intermediate size: the usual 8/3 of the hidden size for a gated block, in multiples of 16."""
    return round(hidden_size * 8 / 3 / 16) * 16


def _train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Trains byte-level BPE over full lines, so that recurring phrases take few tokens. Digits are tokenized in pairs:
    a pair seldom occurs twice in a conversation, which makes numbers easy to copy."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tags = [AddedToken(tag, special=False, normalized=False) for tag in TAGS]
    pairs = [AddedToken(f"{number:02d}", special=False, normalized=False) for number in range(100)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(tags) - len(pairs),
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    spoken = (f"user\nassistant\n{_without_tags(text)}" for text in texts)
    tokenizer.train_from_iterator(spoken, trainer)
    tokenizer.add_tokens([*tags, *pairs])
    return tokenizer


def _without_tags(text: str) -> str:
    """The text with tags replaced by spaces: tags are split off first, so merges across them would never be used."""
    for tag in (*CONTROL_TOKENS, *TAGS):
        text = text.replace(tag, " ")
    return text
