"""Computes how long an update takes, by FLOPs and by bytes on the network, and how long a weight sync takes. Pure.

Computing and communication overlap in FSDP2, so a micro-batch takes the longer of the two.
"""

from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.plan.assumptions import FSDP_MFU, Assumptions
from rstar2.plan.devices import Device
from rstar2.plan.layout import Layout, Sharing
from rstar2.rollout.simulator.hardware import ModelShape
from rstar2.train.learning.work import TokenWork, attention_flop, product_flop
from rstar2.train.memory.activations import GpuActivations
from rstar2.train.policy.policy import is_checkpointed

_FORWARD = 2
"""FLOPs for one weight and one token: a multiply and an add. The backward pass takes twice as many: for the gradients
of inputs and of weights."""
_REDUCED_BYTES = 4


@dataclass(frozen=True, slots=True)
class Passes:
    """How many passes an update makes over the tokens of a step."""

    num_forward: float
    """Forward passes, including those for gradient checkpointing, old log-probabilities and the reference."""
    num_backward: float
    """Backward passes: 1 for the gradients of inputs, and 1 for those of weights, which adapters do not need."""

    @classmethod
    def of(cls, recipe: Recipe) -> "Passes":
        num_forward = 1.0 + is_checkpointed(recipe)
        num_forward += (
            1 - 1 / recipe.train.optimizer_steps_per_batch
        )  # the first of them needs no old log-probabilities
        num_forward += recipe.algo.kl_coef > 0
        return cls(num_forward, 1.0 if recipe.model.lora is not None else 2.0)

    @property
    def total(self) -> float:
        return self.num_forward + self.num_backward


@dataclass(frozen=True, slots=True)
class Update:
    compute_s: float
    communicate_s: float

    @property
    def train_s(self) -> float:
        return max(self.compute_s, self.communicate_s)


def update_time(
    num_tokens: float,
    num_pairs: float,
    recipe: Recipe,
    layout: Layout,
    device: Device,
    shape: ModelShape,
    assumptions: Assumptions,
) -> Update:
    """The update of these tokens and attended pairs, over all ranks and evenly distributed."""
    flops = Passes.of(recipe).total * (
        _FORWARD * shape.num_active_params * num_tokens + shape.attention_flops_per_pair * num_pairs
    )
    mfu = FSDP_MFU if assumptions.mfu is None else assumptions.mfu
    compute_s = flops / (layout.num_ranks * device.hardware.flops_per_s * mfu)
    assert recipe.train.micro_batch_tokens is not None, "the recipe is settled"
    num_micro_batches = -(-num_tokens // (layout.num_ranks * recipe.train.micro_batch_tokens))
    communicate_s = num_micro_batches * _micro_batch_s(layout, device, shape, assumptions)
    return Update(compute_s, communicate_s)


# The update on one GPU, as the kernels of `train/cuda` run it: fitted to updates of 135M to 7B on an H200.
PRODUCT_EFFICIENCY = 0.77
ATTENTION_EFFICIENCY = 0.33
"""Shares of the data sheet's FLOPs."""
_NUM_MOVES = 8.3
"""How often each byte that is kept for the backward pass is read or written, in both passes together."""
_TOKEN_S = 1.7e-6
"""Seconds of the host's work and the head's kernels for one token."""


def gpu_update_time(
    work: TokenWork, recipe: Recipe, device: Device, activations: GpuActivations, mfu: float | None
) -> Update:
    """The update of the tokens of a step on one GPU."""
    sizes, hardware, passes = activations.sizes, device.hardware, Passes.of(recipe)
    extra = passes.num_forward - 1
    """Forward passes without a backward pass: those for gradient checkpointing, old log-probabilities and the
    reference."""
    is_full = recipe.model.lora is None
    product, attention = product_flop(work, sizes, is_full=is_full), attention_flop(work, sizes)
    product *= 1 + extra / (3 if is_full else 2)
    attention *= 1 + extra / 3
    if mfu is not None:
        return Update((product + attention) / (hardware.flops_per_s * mfu), 0.0)
    kept_bytes = work.num_computed * activations.token_bytes
    moved_s = (
        kept_bytes * _NUM_MOVES * (1 + extra / 3) / (hardware.bandwidth_bytes_per_s * hardware.bandwidth_efficiency)
    )
    product_s = product / (hardware.flops_per_s * PRODUCT_EFFICIENCY)
    attention_s = attention / (hardware.flops_per_s * ATTENTION_EFFICIENCY)
    return Update(product_s + attention_s + moved_s + work.num_computed * _TOKEN_S, 0.0)


def _micro_batch_s(layout: Layout, device: Device, shape: ModelShape, assumptions: Assumptions) -> float:
    """Seconds of communication for a micro-batch: weights are gathered for the forward and the backward pass, gradients
    reduced once."""
    if not layout.is_sharded or layout.num_ranks == 1:
        return 0.0
    num_params = shape.weight_bytes / shape.bytes_per_value
    num_bytes = 2 * shape.weight_bytes + _REDUCED_BYTES * num_params
    is_within_node = layout.ranks_per_shard <= layout.ranks_per_node
    sharded_s = num_bytes / _collective_bytes_per_s(layout, device, assumptions, is_within_node=is_within_node)
    if layout.ranks_per_shard == layout.num_ranks:
        return sharded_s
    # Each rank reduces its shard of the gradients with its counterparts on other machines: sent and received.
    copied_bytes = 2 * _REDUCED_BYTES * num_params / layout.ranks_per_shard
    return sharded_s + copied_bytes / (assumptions.network_bytes_per_s * assumptions.collective_efficiency)


def sync_time(layout: Layout, device: Device, shape: ModelShape, assumptions: Assumptions) -> float:
    """The time until every engine has the new weights."""
    if layout.sharing is Sharing.ONE_MODEL:
        return 0.0
    is_within_node = layout.num_nodes == 1
    return shape.weight_bytes / _collective_bytes_per_s(layout, device, assumptions, is_within_node=is_within_node)


def _collective_bytes_per_s(layout: Layout, device: Device, assumptions: Assumptions, *, is_within_node: bool) -> float:
    """The rate at which all ranks receive: data enters a machine once, over the ports of all its devices, and is
    forwarded inside it."""
    ports = layout.ranks_per_node * assumptions.network_bytes_per_s
    link = device.link_bytes_per_s if is_within_node else min(device.link_bytes_per_s, ports)
    return link * assumptions.collective_efficiency
