"""What one engine takes of its device: weights, workspace, and the KV cache in what is left."""

from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.plan.devices import Device
from rstar2.plan.layout import Layout, Sharing
from rstar2.rollout.simulator.hardware import ACTIVATION_BYTES, ModelShape

_EMBEDDED_SHARE_OF_FREE = 0.5
_EMBEDDED_CPU_CACHE_BYTES = 1 << 30
"""What the embedded engine takes if the recipe does not say: half of what is free on a GPU, 1 GiB on a CPU."""
_VLLM_CPU_CACHE_BYTES = 4 << 30
"""vLLM's own default on a CPU."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    weight_bytes: int
    """0 where it reads the trainer's own."""
    workspace_bytes: int
    """Activations, graphs and buffers; it stays while the engine sleeps."""
    cache_bytes: int
    num_cache_tokens: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.cache_bytes


def engine_memory(recipe: Recipe, layout: Layout, device: Device, shape: ModelShape) -> EngineMemory:
    has_own_weights = layout.sharing is not Sharing.ONE_MODEL or recipe.model.lora is not None
    weight_bytes = int(shape.weight_bytes) if has_own_weights else 0
    workspace_bytes = int(ACTIVATION_BYTES) if device.is_gpu else 0
    if recipe.engine.kv_cache_tokens is not None:
        cache_bytes = recipe.engine.kv_cache_tokens * shape.cache_bytes_per_token
    elif recipe.engine.kind == "vllm":
        share_bytes = int(device.memory_bytes * recipe.engine.gpu_memory_share)
        left_bytes = share_bytes - weight_bytes - workspace_bytes
        cache_bytes = max(0, left_bytes) if device.is_gpu else _VLLM_CPU_CACHE_BYTES
    else:
        free_bytes = max(0, device.memory_bytes - int(shape.weight_bytes))
        cache_bytes = int(free_bytes * _EMBEDDED_SHARE_OF_FREE) if device.is_gpu else _EMBEDDED_CPU_CACHE_BYTES
    num_blocks = cache_bytes // (shape.cache_bytes_per_token * recipe.engine.block_tokens)
    return EngineMemory(weight_bytes, workspace_bytes, cache_bytes, num_blocks * recipe.engine.block_tokens)
