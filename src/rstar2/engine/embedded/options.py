"""The options of an embedded engine: what it may use, and where it runs."""

from dataclasses import dataclass, field

import torch

from rstar2.errors import UserError

BLOCK_SIZE = 16
"""Tokens in one block of the cache: small, so that little is wasted at the end of each sequence."""
CUDA_BLOCK_SIZE = 32
"""Tokens in one block on a GPU: larger, because the interpreter, which allocates blocks, is the bottleneck there."""
PREFILL_TILE = 64
"""Query tokens of one program of the GPU's prefill attention."""
VOCABULARY_TILE = 4096
"""Logits of one row that one program of a GPU reads at a time."""
MAX_STOP_TOKENS = 8
"""Stop ids of one turn, checked where the tokens are sampled: a fixed width, so that a step can be recorded."""


@dataclass(frozen=True, slots=True)
class EmbeddedOptions:
    """The engine chooses by device where an option is None."""

    max_running: int | None = None
    """Sequences that decode at the same time; others wait."""
    max_context_tokens: int | None = None
    """The longest sequence, prompt and answer together; by default the model's own limit."""
    kv_cache_tokens: int | None = None
    """Capacity of the KV cache; by default 1 GiB on a CPU, and what `gpu_memory_share` gives on a GPU."""
    gpu_memory_share: float | None = None
    """The cache's share of a GPU's memory, as far as it is free; by default half of what is free."""
    max_prefill_tokens: int | None = None
    """Prompt tokens computed before running sequences get their next tokens: longer prompts go in chunks."""
    steps_ahead: int | None = None
    """Decode steps between two runs of the scheduler. More steps use less CPU, and let requests wait longer."""
    gives_cache_back: bool = False
    """On a GPU: whether the cache's memory is free for others while the engine is paused for new weights."""
    batch_invariant: bool = False
    """On a GPU: whether a token's bits do not depend on other sequences, so that a trainer can compute the same ones.
    On a CPU they never do in float32, nor in bfloat16 where oneDNN packs it."""
    starts_early: bool = False
    """Whether a turn's first tokens are handed over as soon as there are any, for callers who watch them arrive. Among
    many sequences they otherwise wait for a full chunk, which costs less."""
    records_at_start: bool = False
    """On a GPU: whether the CUDA graphs of all batch sizes are recorded at the start, in some seconds. Otherwise each
    is recorded when its size first comes, and everybody waits for it."""
    seed: int = 0
    """Seeds the requests that have no seed of their own."""

    def __post_init__(self) -> None:
        for name in ("max_running", "max_context_tokens", "kv_cache_tokens", "max_prefill_tokens", "steps_ahead"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.gpu_memory_share is not None and not 0 < self.gpu_memory_share <= 1:
            raise UserError(f"gpu_memory_share must be above 0 and at most 1, not {self.gpu_memory_share}")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The options with every choice made."""

    max_running: int
    max_context_tokens: int
    num_blocks: int
    max_prefill_tokens: int
    steps_ahead: int
    block_size: int = field(default=BLOCK_SIZE)
    gives_cache_back: bool = False
    batch_invariant: bool = False
    starts_early: bool = False

    @property
    def max_blocks_per_sequence(self) -> int:
        return -(-self.max_context_tokens // self.block_size)


CPU_CACHE_BYTES = 1 << 30
_CUDA_CACHE_FRACTION = 0.5
_CUDA_MOST_OF_FREE = 0.95
"""The largest share of the free memory that the cache takes: the rest is for activations."""


def choose_limits(
    options: EmbeddedOptions, device: torch.device, model_context_tokens: int, kv_bytes_per_token: int
) -> EngineLimits:
    is_cuda = device.type == "cuda"
    cache_bytes = _cuda_cache_bytes(options, device) if is_cuda else CPU_CACHE_BYTES
    cache_tokens = options.kv_cache_tokens or cache_bytes // kv_bytes_per_token
    if options.max_context_tokens is not None and options.max_context_tokens > model_context_tokens:
        raise UserError(
            f"max_context_tokens is {options.max_context_tokens}, but the model was made for {model_context_tokens}: "
            f"lower it"
        )
    block_size = CUDA_BLOCK_SIZE if is_cuda else BLOCK_SIZE
    if cache_tokens < block_size:
        raise UserError(f"kv_cache_tokens is {cache_tokens}: it must hold at least one block of {block_size} tokens")
    max_running = options.max_running or (1024 if is_cuda else 64)
    default_steps_ahead = 1
    if is_cuda:
        # With many sequences a step is long: half as many steps in a run use little CPU too, and a turn waits less.
        default_steps_ahead = 16 if max_running <= 1024 else 8
    return EngineLimits(
        max_running=max_running,
        max_context_tokens=options.max_context_tokens or model_context_tokens,
        num_blocks=cache_tokens // block_size,
        max_prefill_tokens=options.max_prefill_tokens or (16384 if is_cuda else 256),
        steps_ahead=options.steps_ahead or default_steps_ahead,
        block_size=block_size,
        gives_cache_back=options.gives_cache_back and is_cuda,
        batch_invariant=options.batch_invariant and is_cuda,
        starts_early=options.starts_early,
    )


def _cuda_cache_bytes(options: EmbeddedOptions, device: torch.device) -> int:
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    if options.gpu_memory_share is None:
        return int(free_bytes * _CUDA_CACHE_FRACTION)
    return shared_cache_bytes(options.gpu_memory_share, free_bytes, total_bytes)


def shared_cache_bytes(gpu_memory_share: float, free_bytes: int, total_bytes: int) -> int:
    """The size of a cache on a GPU that is shared with a trainer."""
    return int(min(total_bytes * gpu_memory_share, free_bytes * _CUDA_MOST_OF_FREE))


def choose_device(name: str) -> torch.device:
    """The device called `auto`, `cpu` or `cuda`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device is 'cuda', but no CUDA GPU is visible here: use 'cpu' or 'auto'")
    return device
