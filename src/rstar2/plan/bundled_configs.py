"""The sizes of the models that recipes name, so that a plan needs neither their weights nor a network.

Each is what the model's own config.json says, as far as memory and time depend on it.
"""

from typing import Any


def _qwen3(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, is_tied: bool, context_tokens: int
) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": context_tokens,
    }


def _qwen2(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, num_kv_heads: int, is_tied: bool
) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        # The untied ones pad their vocabulary to a rounder number.
        "vocab_size": 151_936 if is_tied else 152_064,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "tie_word_embeddings": is_tied,
        "max_position_embeddings": 32_768,
    }


def _smollm2(
    hidden_size: int, intermediate_size: int, num_layers: int, num_heads: int, num_kv_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    }


BUNDLED: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _smollm2(576, 1536, 30, 9, 3),
    "HuggingFaceTB/SmolLM2-360M-Instruct": _smollm2(960, 2560, 32, 15, 5),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": _smollm2(2048, 8192, 24, 32, 32),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2, True),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2, True),
    "Qwen/Qwen2.5-Coder-7B-Instruct": _qwen2(3584, 18_944, 28, 28, 4, False),
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, True, 40_960),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, True, 40_960),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, True, 40_960),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, False, 40_960),
    "Qwen/Qwen3-14B": _qwen3(5120, 17_408, 40, 40, False, 40_960),
    "Qwen/Qwen3-14B-Base": _qwen3(5120, 17_408, 40, 40, False, 32_768),
    "Qwen/Qwen3-32B": _qwen3(5120, 25_600, 64, 64, False, 40_960),
}
"""By repository on the hub."""
