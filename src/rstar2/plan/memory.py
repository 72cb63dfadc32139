"""Memory of one rank by part, while it trains and while it generates.

Training is looked at in the two moments that can be its worst: when the head's logits stand in memory, and when a
layer's backward pass has its gradients in flight. Parts are those of the worse one, so they add up to a moment that
really occurs.
"""

from dataclasses import dataclass

from rstar2.plan.activations import ActivationBytes
from rstar2.plan.engine_memory import EngineMemory
from rstar2.plan.layout import Layout, Sharing
from rstar2.plan.shards import Shards

MASTER_BYTES = 4
"""Weights are updated, and gradients summed over ranks, in float32."""
MOMENT_BYTES = 8
"""AdamW's two moments of each weight."""
_NUM_GATHERED_LAYERS = 3
"""FSDP2 holds the layer that runs, and the buffers of its gathering and of the next layer's."""

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
    """What a trainer rank holds on its device."""

    parameters: int
    optimizer: int
    reference: int
    """What the KL term holds on to: a second copy of all that is trained."""
    gathered: int
    gradients_kept: int
    """Summed up from micro-batch to micro-batch."""
    gradients_at_head: int
    gradients_in_layer: int
    """In flight in the one and the other moment, before they are reduced to this rank's part."""
    on_host: int
    """Kept in the machine's memory instead, by `cluster.cpu_offload`."""


def trainer_bytes(
    shards: Shards, layout: Layout, itemsize: int, *, has_reference: bool, has_merged_copy: bool = False
) -> TrainerBytes:
    """`itemsize` is of the format that the model computes in. A merged copy: of the frozen weights with the adapters in
    them, beside the one that the engine reads."""
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
    """Bytes by part, at the worst moment of a phase; parts that are not there are left out."""

    name: str
    parts: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One device, by the rank that it is; engines that sit apart are called so."""

    name: str
    phases: tuple[Phase, ...]
    capacity_bytes: int
    """What may be used: the device's memory less the margin."""
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
    is_head_worse = at_head > in_layer
    parts = {
        "parameters": trainer.parameters,
        "gathered parameters": trainer.gathered,
        "gradients": trainer.gradients_kept
        + (trainer.gradients_at_head if is_head_worse else trainer.gradients_in_layer),
        "optimizer": trainer.optimizer,
        "activations": activations.kept_layers + (activations.ends if is_head_worse else activations.one_layer),
        "reference model": trainer.reference,
    }
    if layout.sharing is Sharing.TURNS:
        parts["engine workspace"] = engine.workspace_bytes
    elif layout.sharing is not Sharing.APART:
        parts |= _engine_parts(engine)
    return _phase("train", parts)


def generate_phase(trainer: TrainerBytes | None, engine: EngineMemory) -> Phase:
    """Between two updates: gradients and activations are gone. Without a trainer, an engine that sits apart."""
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
