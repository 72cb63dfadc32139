"""The tokenizer of a GGUF file as Hugging Face files.

GGUF names the way text is split before byte-pair merging (`tokenizer.ggml.pre`) but does not describe it; each name
has to be known here. `smollm` splits every digit off, then splits as GPT-2 does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_NORMAL, _CONTROL = 1, 3
"""Of `tokenizer.ggml.token_type`."""


def write_tokenizer(metadata: dict[str, Any], folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    control_tokens = _control_tokens(metadata)
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    config = {
        # The class that takes tokenizer.json as it is: GPT2Tokenizer would put its own splitting in place of ours.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(tokens.index(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in control_tokens
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"], encoding="utf-8")


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    _refuse_unknown_kinds(metadata)
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in _control_tokens(metadata)]
    )
    return tokenizer


def _control_tokens(metadata: dict[str, Any]) -> list[str]:
    kinds = zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in kinds if kind == _CONTROL]


def _refuse_unknown_kinds(metadata: dict[str, Any]) -> None:
    """A tokenizer that is nearly right is worse than none: its ids look plausible."""
    for key, supported in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        if metadata.get(key) != supported:
            raise UserError(f"GGUF field {key} is {metadata.get(key)!r}; only {supported!r} can be converted")
    for key in ("tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"):
        if metadata.get(key, False):
            raise UserError(f"GGUF field {key} is set; such tokenizers cannot be converted")
    other_kinds = set(metadata["tokenizer.ggml.token_type"]) - {_NORMAL, _CONTROL}
    if other_kinds:
        raise UserError(f"GGUF field tokenizer.ggml.token_type holds {sorted(other_kinds)}; only 1 and 3 are known")
