"""The assumptions of a plan. Every value can be set, and every one is printed with the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FSDP_MFU = 0.35
"""The default MFU of FSDP, which on such models is commonly reported between 0.3 and 0.45."""


@dataclass(frozen=True, slots=True)
class MeanLength:
    """The mean response of a stage, in tokens, at its first and at its last step."""

    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Assumptions:
    mfu: float | None = None
    """Share of the data sheet's FLOPs that training reaches, recomputation counted. If None, `FSDP_MFU` on a cluster
    and a CPU, and on one GPU the rate of our update's kernels at these sizes."""
    memory_margin: float = 0.1
    """Share of the device's memory kept free for fragmentation, communication buffers and the runtime."""
    network_bytes_per_s: float = 50e9
    """Bandwidth of each GPU to other machines, in one direction: a port of 400 Gbit/s, since the report names none."""
    collective_efficiency: float = 0.7
    """Share of a link's rate that collectives reach."""
    mean_response_tokens: Mapping[str, MeanLength] = field(default_factory=dict)
    """The mean response of each stage, by its name; `""` is for all stages. The default is the report's, relative to
    the stage's limit."""
    mean_eval_tokens: float | None = None
    """Mean response in an evaluation; by default the share of its limit that the report's AIME24 responses have."""
    mean_prompt_tokens: float | None = None
    """Mean prompt, of system text, tool and problem; by default 550, or half of the recipe's limit if that is less."""
    mean_conversation_tokens: float | None = None
    """Mean length of the warm-up's conversations; by default 1000, or half of the recipe's limit if that is less."""
    tool_s: float = 0.3
    """Mean time from a call to its result, as in the report."""
    calls_per_rollout: float = 2.75
    """Mean number of tool calls: 45,000 in a step of 16,384 rollouts, as in the report."""
    num_problems: Mapping[str, int] = field(default_factory=dict)
    """Sizes of data sets that cannot be inspected, by their name."""
    max_simulated_rollouts: int = 2048
    """A step with more rollouts is simulated as a slice: this many of them, on a proportional part of its engines."""
    seed: int = 0
