"""A llama GGUF file to a Hugging Face folder: configuration, bfloat16 weights, tokenizer.

Dequantizing loses nothing more than the quantization did, but for the rounding to bfloat16.
"""

import json
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.models.gguf_tensors import hf_name, to_bfloat16
from rstar2.models.gguf_tokenizer import write_tokenizer
from rstar2.models.progress import Progress


def convert_gguf(gguf_path: Path, folder: Path, progress: Progress) -> None:
    """Fills the existing `folder`."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise UserError(f"{gguf_path.name} holds a {architecture!r} model; only 'llama' can be converted")
    tied_head = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _write_json(folder / "config.json", model_config(metadata, tied_head=tied_head))
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    write_tokenizer(metadata, folder)
    _write_weights(reader.tensors, metadata, folder / "model.safetensors", progress)


def model_config(metadata: dict[str, Any], *, tied_head: bool) -> dict[str, Any]:
    """config.json of a `LlamaForCausalLM`."""
    hidden_size: int = metadata["llama.embedding_length"]
    num_heads: int = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "head_dim": metadata.get("llama.attention.key_length", hidden_size // num_heads),
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _shortest(metadata["llama.rope.freq_base"]),
        "tie_word_embeddings": tied_head,
        "torch_dtype": "bfloat16",
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        **_special_ids(metadata),
    }


def _special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _shortest(value: float) -> float:
    """GGUF stores float32; this is the decimal that was meant, 1e-05 and not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _write_weights(tensors: Any, metadata: dict[str, Any], path: Path, progress: Progress) -> None:
    from safetensors.torch import save

    num_heads: int = metadata["llama.attention.head_count"]
    num_kv_heads: int = metadata["llama.attention.head_count_kv"]
    weights = {}
    num_bytes_done = 0
    with progress.stage("dequantizing", sum(2 * int(tensor.n_elements) for tensor in tensors)) as advance:
        for tensor in tensors:
            weights[hf_name(tensor.name)] = to_bfloat16(tensor, num_heads, num_kv_heads)
            num_bytes_done += 2 * int(tensor.n_elements)
            advance(num_bytes_done)
        # Written by us, so that a full disk is an OSError and not a message of the library's.
        path.write_bytes(save(weights, metadata={"format": "pt"}))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
