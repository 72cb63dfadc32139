"""Memory of one engine and of one trainer rank by part, while the rank trains and while the engine generates.

Training has two moments that can be its peak: when the head's logits are in memory, and when a layer's backward pass
has its gradients in flight. Parts are those of the higher peak, so they add up to a moment that really occurs.
"""

from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.engine.embedded import options as embedded
from rstar2.engine.vllm import in_process
from rstar2.plan.devices import Device
from rstar2.plan.layout import Layout, Sharing
from rstar2.plan.shards import Shards
from rstar2.rollout.simulator.hardware import ACTIVATION_BYTES, ModelShape
from rstar2.train.memory.activations import ActivationBytes
from rstar2.train.memory.division import Division
from rstar2.train.memory.need import GpuNeed

_FLOAT32_BYTES = 4
_VLLM_CPU_CACHE_BYTES = 4 << 30
"""vLLM's own default cache on a CPU."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    weight_bytes: int
    """The engine's weights; 0 if it reads the trainer's."""
    workspace_bytes: int
    """Activations, graphs and buffers; kept while the engine sleeps."""
    cache_bytes: int
    num_cache_tokens: int
    gives_cache_back: bool = False
    """Whether the cache's memory is free during an update."""

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.cache_bytes


def engine_memory(recipe: Recipe, layout: Layout, device: Device, shape: ModelShape) -> EngineMemory:
    has_own_weights = layout.sharing is not Sharing.ONE_MODEL or recipe.model.lora is not None
    weight_bytes = int(shape.weight_bytes) if has_own_weights else 0
    workspace_bytes = int(ACTIVATION_BYTES) if device.is_gpu else 0
    token_bytes = _cached_token_bytes(recipe, device, shape)
    if recipe.engine.kv_cache_tokens is not None:
        cache_bytes = recipe.engine.kv_cache_tokens * token_bytes
    elif recipe.engine.kind == "vllm":
        share_bytes = int(device.memory_bytes * recipe.engine.gpu_memory_share)
        left_bytes = share_bytes - weight_bytes - workspace_bytes
        cache_bytes = max(0, left_bytes) if device.is_gpu else _VLLM_CPU_CACHE_BYTES
    else:
        free_bytes = max(0, device.memory_bytes - int(shape.weight_bytes))
        share_bytes = embedded.shared_cache_bytes(recipe.engine.gpu_memory_share, free_bytes, device.memory_bytes)
        cache_bytes = share_bytes if device.is_gpu else embedded.CPU_CACHE_BYTES
    num_block_tokens = block_size(recipe, device)
    num_blocks = cache_bytes // (token_bytes * num_block_tokens)
    return EngineMemory(weight_bytes, workspace_bytes, cache_bytes, num_blocks * num_block_tokens)


def _cached_token_bytes(recipe: Recipe, device: Device, shape: ModelShape) -> int:
    """On a CPU the embedded engine's cache is in float32, whatever the format of the weights."""
    if device.is_gpu or recipe.engine.kind == "vllm":
        return shape.cache_bytes_per_token
    return shape.cache_bytes_per_token // shape.bytes_per_value * _FLOAT32_BYTES


def divided_engine(division: Division) -> EngineMemory:
    """The memory of an engine that shares one GPU with its trainer."""
    num_tokens = division.kv_cache_tokens // embedded.CUDA_BLOCK_SIZE * embedded.CUDA_BLOCK_SIZE
    need = division.need
    return EngineMemory(
        need.engine_weights, need.engine_workspace, division.cache_bytes, num_tokens, division.gives_cache_back
    )


def divided_trainer(need: GpuNeed) -> "TrainerBytes":
    return TrainerBytes(
        parameters=need.weights,
        optimizer=need.optimizer,
        reference=need.reference,
        gathered=0,
        gradients_kept=need.gradients,
        gradients_at_head=0,
        gradients_in_layer=0,
        on_host=0,
    )


def block_size(recipe: Recipe, device: Device) -> int:
    """Tokens in one block of the cache: the engine's own choice."""
    if recipe.engine.kind == "vllm":
        return in_process.BLOCK_SIZE if device.is_gpu else in_process.CPU_BLOCK_SIZE
    return embedded.CUDA_BLOCK_SIZE if device.is_gpu else embedded.BLOCK_SIZE


MASTER_BYTES = 4
"""Bytes of a weight's float32 master and of a gradient: weights are updated, and gradients summed over ranks, in
float32."""
MOMENT_BYTES = 8
"""Bytes of AdamW's two moments of each weight."""
_NUM_GATHERED_LAYERS = 3
"""How many gathered layers FSDP2 holds: the one that runs, and the all-gather buffers of it and of the next layer."""

PARTS = (
    "parameters",
    "gathered parameters",
    "gradients",
    "optimizer",
    "activations",
    "reference model",
    "engine weights",
    "engine workspace",
    "KV cache",
)


@dataclass(frozen=True, slots=True)
class TrainerBytes:
    """Memory of a trainer rank on its device."""

    parameters: int
    optimizer: int
    reference: int
    """The reference of the KL term: a second copy of all trained weights."""
    gathered: int
    gradients_kept: int
    """Gradients accumulated over micro-batches."""
    gradients_at_head: int
    gradients_in_layer: int
    """Gradients in flight at each of the two peaks, before they are reduced to this rank's shard."""
    on_host: int
    """Bytes that `cluster.cpu_offload` keeps in the machine's memory."""


def trainer_bytes(
    shards: Shards, layout: Layout, itemsize: int, *, has_reference: bool, has_merged_copy: bool = False
) -> TrainerBytes:
    """The memory of a trainer rank. `itemsize` is that of the dtype that the model computes in. `has_merged_copy`:
    whether there is a copy of the frozen weights with adapters merged in, besides the one that the engine reads."""
    num_frozen = shards.num_held - shards.num_held_trained
    if not layout.is_sharded:
        masters = 0 if itemsize == MASTER_BYTES else MASTER_BYTES
        return TrainerBytes(
            parameters=(shards.num_held + (num_frozen if has_merged_copy else 0)) * itemsize,
            optimizer=shards.num_held_trained * (MOMENT_BYTES + masters),
            reference=shards.num_held_trained * itemsize if has_reference else 0,
            gathered=0,
            gradients_kept=shards.num_held_trained * MASTER_BYTES,
            gradients_at_head=0,
            gradients_in_layer=0,
            on_host=0,
        )
    parameters = shards.num_held_trained * MASTER_BYTES + num_frozen * itemsize
    gradients = shards.num_held_trained * MASTER_BYTES
    optimizer = shards.num_held_trained * MOMENT_BYTES
    reference = shards.num_held_trained * MASTER_BYTES if has_reference else 0
    of_root = shards.num_root_trained * itemsize
    of_layer = shards.num_largest_layer_trained * (itemsize + MASTER_BYTES)
    is_offloaded = layout.is_offloaded
    return TrainerBytes(
        parameters=0 if is_offloaded else parameters,
        optimizer=0 if is_offloaded else optimizer,
        reference=0 if is_offloaded else reference,
        gathered=(shards.num_root + _NUM_GATHERED_LAYERS * shards.num_largest_layer) * itemsize,
        gradients_kept=0 if is_offloaded else gradients,
        gradients_at_head=of_root,
        gradients_in_layer=of_root + of_layer,
        on_host=parameters + gradients + optimizer + reference if is_offloaded else 0,
    )


@dataclass(frozen=True, slots=True)
class Phase:
    """Bytes by part at the peak of a phase, without empty parts."""

    name: str
    parts: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of one device: of a rank, or of an engine on a separate device."""

    name: str
    phases: tuple[Phase, ...]
    capacity_bytes: int
    """The device's memory less the margin."""
    host_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return max(phase.total_bytes for phase in self.phases)

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes


def train_phase(trainer: TrainerBytes, activations: ActivationBytes, engine: EngineMemory, layout: Layout) -> Phase:
    at_head = activations.ends + trainer.gradients_at_head
    in_layer = activations.one_layer + trainer.gradients_in_layer
    is_head_peak = at_head > in_layer
    parts = {
        "parameters": trainer.parameters,
        "gathered parameters": trainer.gathered,
        "gradients": trainer.gradients_kept
        + (trainer.gradients_at_head if is_head_peak else trainer.gradients_in_layer),
        "optimizer": trainer.optimizer,
        "activations": activations.kept_layers + (activations.ends if is_head_peak else activations.one_layer),
        "reference model": trainer.reference,
    }
    if layout.sharing is Sharing.TURNS:
        parts["engine workspace"] = engine.workspace_bytes
    elif layout.sharing is not Sharing.APART:
        parts |= _engine_parts(engine)
        if engine.gives_cache_back:
            del parts["KV cache"]
    return _phase("train", parts)


def generate_phase(trainer: TrainerBytes | None, engine: EngineMemory) -> Phase:
    """The memory between two updates, without gradients and activations; without a trainer, that of an engine on its
    own device."""
    parts = _engine_parts(engine)
    if trainer is not None:
        parts |= {
            "parameters": trainer.parameters,
            "optimizer": trainer.optimizer,
            "reference model": trainer.reference,
        }
    return _phase("generate", parts)


def _engine_parts(engine: EngineMemory) -> dict[str, int]:
    return {
        "engine weights": engine.weight_bytes,
        "engine workspace": engine.workspace_bytes,
        "KV cache": engine.cache_bytes,
    }


def _phase(name: str, parts: dict[str, int]) -> Phase:
    return Phase(name, {part: parts[part] for part in PARTS if parts.get(part)})
