"""What one engine takes of its device: weights, workspace, and the KV cache in what is left."""

from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.engine.embedded import options as embedded
from rstar2.engine.vllm import in_process
from rstar2.plan.devices import Device
from rstar2.plan.layout import Layout, Sharing
from rstar2.rollout.simulator.hardware import ACTIVATION_BYTES, ModelShape

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
        share_bytes = embedded.shared_cache_bytes(recipe.engine.gpu_memory_share, free_bytes, device.memory_bytes)
        cache_bytes = share_bytes if device.is_gpu else embedded.CPU_CACHE_BYTES
    num_block_tokens = block_size(recipe, device)
    num_blocks = cache_bytes // (shape.cache_bytes_per_token * num_block_tokens)
    return EngineMemory(weight_bytes, workspace_bytes, cache_bytes, num_blocks * num_block_tokens)


def block_size(recipe: Recipe, device: Device) -> int:
    """Tokens in one block of the cache: the engine's own choice."""
    if recipe.engine.kind == "vllm":
        return in_process.BLOCK_SIZE if device.is_gpu else in_process.CPU_BLOCK_SIZE
    return embedded.CUDA_BLOCK_SIZE if device.is_gpu else embedded.BLOCK_SIZE
