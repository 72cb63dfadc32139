"""How fast an engine is: a roofline of an accelerator and a model, or numbers that were measured.

A decoding step runs its kernels in sequence, so its time is a sum: the linear layers (reading the weights once, or
computing, whichever is longer), attention (reading the cache of every running rollout) and a fixed overhead. The tokens
of a prefill are added to the linear layers of their step, and pay for their own attention.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rstar2.errors import UserError
from rstar2.rollout.scheduler import EngineSpeed


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator, by its data sheet, and the share of it that inference reaches."""

    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: float
    """Dense bfloat16."""
    bandwidth_efficiency: float = 0.75
    flops_efficiency: float = 0.45


HARDWARE = {
    "mi300x": Hardware(192e9, 5.3e12, 1307e12),
    "h100": Hardware(80e9, 3.35e12, 989e12),
    "h200": Hardware(141e9, 4.8e12, 989e12),
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a transformer that the roofline needs."""

    weight_bytes: float
    num_active_params: float
    """Parameters of the matrices that a token is multiplied with; the input embedding is only looked up."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_value: int = 2

    @property
    def cache_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_value

    @property
    def attention_flops_per_pair(self) -> int:
        """FLOPs for one token that attends to one other: the scores and the weighted sum, a multiply and an add
        each."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


QWEN3_14B = ModelShape(29.5e9, 14.0e9, num_layers=40, num_heads=40, num_kv_heads=8, head_dim=128)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The simulator's model of an engine. Each field can be measured on a real one."""

    num_cache_tokens: int
    weights_s: float
    """Reading the weights once: the least time of the linear layers of a step."""
    linear_token_s: float
    """The linear layers' work for one token."""
    cached_token_s: float
    """Reading one token of a running rollout's cache."""
    attention_pair_s: float
    """The time in which one token attends to one other, in a prefill."""
    overhead_s: float = 0.001
    """Launching and scheduling, every step."""
    sampled_token_s: float = 0.0
    """Extra cost of a decoded token over a prefilled one, or less if negative; for measured engines."""
    max_num_seqs: int = 1024
    """verl's default, as is that of `max_num_batched_tokens`."""
    max_num_batched_tokens: int = 8192
    block_size: int = 1
    """The cache is allocated in blocks: a turn starts if each running one can still get another, and a prefix cache
    keeps full blocks, so that the next turn recomputes the rest of a context. With long contexts it hardly matters."""

    @property
    def speed(self) -> EngineSpeed:
        return EngineSpeed(self.linear_token_s, self.weights_s + self.overhead_s, self.cached_token_s)

    def decode_s(self, num_running: int, num_context_tokens: int, num_steps: int) -> float:
        """The time of steps in which `num_running` rollouts, with `num_context_tokens` in total at first, grow by 1
        each."""
        linear_s = max(self.weights_s, num_running * self.linear_token_s)
        growth = num_running * num_steps * (num_steps - 1) / 2
        sampled_s = num_running * self.sampled_token_s
        return num_steps * (linear_s + self.overhead_s + sampled_s) + self.cached_token_s * (
            num_context_tokens * num_steps + growth
        )


ACTIVATION_BYTES = 4e9
"""Reserved for activations and graphs."""


def roofline(hardware: Hardware, model: ModelShape, memory_fraction: float) -> EngineModel:
    """`memory_fraction` of the memory holds weights, activations and cache; the rest is the trainer's."""
    cache_bytes = hardware.memory_bytes * memory_fraction - model.weight_bytes - ACTIVATION_BYTES
    if cache_bytes < model.cache_bytes_per_token:
        raise UserError(
            f"memory fraction {memory_fraction} leaves no cache: {hardware.memory_bytes * memory_fraction / 1e9:.0f} GB"
            f" for {model.weight_bytes / 1e9:.1f} GB of weights; give a larger one"
        )
    bandwidth = hardware.bandwidth_bytes_per_s * hardware.bandwidth_efficiency
    flops = hardware.flops_per_s * hardware.flops_efficiency
    return EngineModel(
        num_cache_tokens=int(cache_bytes / model.cache_bytes_per_token),
        weights_s=model.num_active_params * model.bytes_per_value / bandwidth,
        linear_token_s=2 * model.num_active_params / flops,
        cached_token_s=model.cache_bytes_per_token / bandwidth,
        attention_pair_s=model.attention_flops_per_pair / flops,
    )


def read_measured(path: Path) -> EngineModel:
    """An engine model from a JSON object with the fields of `EngineModel`, as `write_measured` writes it."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        model = EngineModel(**values)
    except (OSError, ValueError, TypeError) as error:
        names = ", ".join(field.name for field in fields(EngineModel))
        raise UserError(f"{path} is not a measured engine: {error}; it needs the fields {names}") from error
    return model


def write_measured(path: Path, model: EngineModel) -> None:
    path.write_text(json.dumps(asdict(model), indent=2) + "\n", encoding="utf-8")
