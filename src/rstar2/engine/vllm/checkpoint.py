"""Weights as a folder that vLLM can reload, always with a separate output head.

Invariant: every folder written here has `lm_head.weight`. A model whose head is tied to its embedding has no such
tensor in its checkpoint, and vLLM on a CPU then keeps the head that it packed when it started: a part of the model
stays old, silently. A model that was started untied takes the head from every checkpoint, and one that was started tied
skips it, so an untied checkpoint is right for both.

    python -m rstar2.engine.vllm.checkpoint FOLDER TARGET      # what `vllm serve TARGET` needs on a CPU
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rstar2.errors import UserError

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4 << 30
"""Bytes of a shard, and so the memory in use while weights are written."""


def write_weights(tensors: Iterable[tuple[str, torch.Tensor]], target: Path) -> None:
    """The tensors, under the names that `transformers` gives them, as a checkpoint in the empty folder `target`."""
    writer = _Writer(target)
    embedding = None
    for name, tensor in tensors:
        writer.add(name, tensor)
        if name == EMBEDDING:
            embedding = tensor
    if HEAD not in writer.files:
        if embedding is None:
            raise UserError(f"the weights have neither {HEAD} nor {EMBEDDING}: give those of the full model")
        writer.add(HEAD, embedding)
    writer.finish()


def has_own_head(folder: Path) -> bool:
    return any(HEAD in _names(file) for file in _weight_files(folder))


def untie(folder: Path, target: Path) -> None:
    """Make `target` the same model with a separate head: links to the weights of `folder`, and one more tensor."""
    sources = _weight_files(folder)
    files: dict[str, str] = {}
    target.mkdir(parents=True, exist_ok=True)
    for number, source in enumerate(sources):
        link = target / f"model-{number:05}.safetensors"
        link.symlink_to(source.resolve())
        files |= dict.fromkeys(_names(source), link.name)
    if HEAD not in files:
        if EMBEDDING not in files:
            raise UserError(f"{folder} has neither {HEAD} nor {EMBEDDING}: vLLM cannot be given its weights")
        with safe_open(target / files[EMBEDDING], framework="pt") as weights:
            save_file({HEAD: weights.get_tensor(EMBEDDING)}, target / "model-head.safetensors")
        files[HEAD] = "model-head.safetensors"
    _write_index(target, files)
    for source in folder.iterdir():
        if source.is_file() and source not in sources and source.name not in (INDEX, "config.json"):
            (target / source.name).symlink_to(source.resolve())
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}, indent=2))


class _Writer:
    def __init__(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        self.files: dict[str, str] = {}
        """The file of each tensor."""
        self._target = target
        self._shard: dict[str, torch.Tensor] = {}
        self._num_bytes = 0
        self._num_shards = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self._shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        self._num_bytes += self._shard[name].nbytes
        self.files[name] = f"model-{self._num_shards:05}.safetensors"
        if self._num_bytes >= SHARD_BYTES:
            self._flush()

    def finish(self) -> None:
        self._flush()
        _write_index(self._target, self.files)

    def _flush(self) -> None:
        if self._shard:
            save_file(self._shard, self._target / f"model-{self._num_shards:05}.safetensors")
        self._shard, self._num_bytes, self._num_shards = {}, 0, self._num_shards + 1


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no .safetensors file: it is no folder of weights")
    return files


def _names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as weights:
        return list(weights.keys())


def _write_index(target: Path, files: Mapping[str, str]) -> None:
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


if __name__ == "__main__":
    untie(Path(sys.argv[1]), Path(sys.argv[2]))
