"""How a GPU is divided between the trainer and its engine: the cache, the micro-batch, gradient checkpointing. Pure.

Where engine and trainer take turns (`train.max_staleness` of 0), the cache and the activations are not needed at the
same time: if both do not fit, the cache's memory is given back during an update. Where they run at the same time, each
has its own part. Values that the recipe gives are kept; those that it leaves open are chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rstar2.config import Recipe
from rstar2.train.memory.need import GpuNeed

GIB = 1 << 30
MICRO_BATCH_UNIT = 256
MAX_MICRO_BATCH_TOKENS = 1 << 16
_ENOUGH_NUMBERS = 1 << 25
"""Size of a micro-batch, in numbers of its hidden states, from which on a larger one is no faster: 65,536 tokens of a
model of 135M parameters, 21,760 of one of 1.5B."""
_LEAST_SHARE = 8
"""Activations are recomputed rather than making micro-batches smaller than one part in this many of that size."""
_FRAGMENTS = 0.1
"""The allocator's fragmentation, as a share of the activations."""
_CACHE_SHARE = 0.95
"""The cache's share of the room between two updates: the trainer's process keeps fragments of an update."""


@dataclass(frozen=True, slots=True)
class Division:
    kv_cache_tokens: int
    micro_batch_tokens: int
    is_checkpointed: bool
    gives_cache_back: bool
    """Whether the cache's memory is given back during an update."""
    need: GpuNeed
    capacity_bytes: int
    problem: str | None = None
    """A sentence about what does not fit, with the field and what would fit; None if everything fits."""

    @property
    def cache_bytes(self) -> int:
        return self.kv_cache_tokens * self.need.cache_token

    @property
    def update_bytes(self) -> int:
        return self.need.update(self.micro_batch_tokens, is_checkpointed=self.is_checkpointed)

    @property
    def trainer_bytes(self) -> int:
        """The most that the trainer's process may take."""
        cache = 0 if self.gives_cache_back else self.cache_bytes
        return self.capacity_bytes - self.need.engine_workspace - cache

    def settle(self, recipe: Recipe) -> Recipe:
        """The recipe with the values that it left open filled in."""
        train = {"micro_batch_tokens": self.micro_batch_tokens, "gradient_checkpointing": self.is_checkpointed}
        return recipe.model_copy(
            update={
                "train": recipe.train.model_copy(update=train),
                "engine": recipe.engine.model_copy(update={"kv_cache_tokens": self.kv_cache_tokens}),
            }
        )

    @property
    def sentence(self) -> str:
        need = self.need
        recomputed = " (with gradient checkpointing)" if self.is_checkpointed else ""
        shared = " (given back during updates)" if self.gives_cache_back else ""
        return (
            f"GPU memory in GiB, {_gib(self.capacity_bytes)} in all: weights "
            f"{_gib(need.weights + need.engine_weights + need.reference)}, optimizer {_gib(need.optimizer)}, updates "
            f"of {self.micro_batch_tokens:,} tokens at a time {_gib(self.update_bytes)}{recomputed}, KV cache of "
            f"{self.kv_cache_tokens:,} tokens {_gib(self.cache_bytes)}{shared}, engine {_gib(need.engine_workspace)}"
        )


def divide(recipe: Recipe, need: GpuNeed, capacity_bytes: int, device_bytes: int, num_workers: int = 1) -> Division:
    """Divides the `capacity_bytes` that may be used of a device of `device_bytes`; `num_workers` drivers share the
    cache."""
    room = capacity_bytes - need.fixed
    in_turns = recipe.train.max_staleness == 0
    wanted_cache = _wanted_cache(recipe, need, device_bytes, num_workers)
    room_for_update = room if in_turns else room - min(wanted_cache * need.cache_token, max(0, room) // 2)
    num_tokens, is_checkpointed = _choose_micro_batch(recipe, need, room_for_update)
    update = _with_fragments(need.update(num_tokens, is_checkpointed=is_checkpointed))
    room_for_cache = int(_CACHE_SHARE * (room if in_turns else room - update))
    cache_tokens = wanted_cache
    if recipe.engine.kv_cache_tokens is None:
        cache_tokens = max(0, min(wanted_cache, room_for_cache // need.cache_token))
    is_too_much = cache_tokens * need.cache_token + update > room
    division = Division(
        kv_cache_tokens=cache_tokens,
        micro_batch_tokens=num_tokens,
        is_checkpointed=is_checkpointed,
        gives_cache_back=in_turns and is_too_much,
        need=need,
        capacity_bytes=capacity_bytes,
    )
    return replace(division, problem=_problem(recipe, division, room, room_for_update, room_for_cache, num_workers))


def longest_sequence(recipe: Recipe) -> int:
    """The longest sequence that is trained on, in tokens."""
    lengths = [recipe.rollout.max_prompt_tokens + stage.max_response_tokens for stage in recipe.stages]
    if recipe.sft is not None:
        lengths.append(recipe.sft.max_tokens)
    return max(lengths, default=MICRO_BATCH_UNIT)


def longest_rollout(recipe: Recipe) -> int:
    """The longest rollout, prompt and response, of training and evaluation, in tokens."""
    limits = [stage.max_response_tokens for stage in recipe.stages]
    if recipe.eval.benchmarks:
        limits.append(recipe.eval.max_response_tokens)
    return recipe.rollout.max_prompt_tokens + max(limits, default=0)


def largest(holds: Callable[[int], bool], unit: int, most: int) -> int | None:
    """The largest multiple of `unit`, at most `most`, for which `holds`; None if there is none. `holds` must be true
    for all smaller numbers, too."""
    if not holds(unit):
        return None
    if holds(most // unit * unit):
        return most // unit * unit
    low, high = 1, 2
    while high * unit < most and holds(high * unit):
        low, high = high, high * 2
    high = min(high, most // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle * unit) else (low, middle)
    return low * unit


def _wanted_cache(recipe: Recipe, need: GpuNeed, device_bytes: int, num_workers: int) -> int:
    """The wanted cache in tokens: room for all rollouts of a step at full length, within the recipe's share of the
    device."""
    if recipe.engine.kv_cache_tokens is not None:
        return recipe.engine.kv_cache_tokens
    num_rollouts = recipe.train.prompts_per_step * recipe.algo.num_sampled
    if recipe.rollout.max_concurrent is not None:
        num_rollouts = min(num_rollouts, recipe.rollout.max_concurrent)
    num_tokens = max(num_rollouts, num_workers) * longest_rollout(recipe)
    return min(num_tokens, int(device_bytes * recipe.engine.gpu_memory_share) // need.cache_token)


def _choose_micro_batch(recipe: Recipe, need: GpuNeed, room: int) -> tuple[int, bool]:
    """The tokens of a micro-batch, and whether to use gradient checkpointing: only if otherwise too few tokens would
    fit."""
    given, is_checkpointed = recipe.train.micro_batch_tokens, recipe.train.gradient_checkpointing
    longest = longest_sequence(recipe)
    enough = min(MAX_MICRO_BATCH_TOKENS, _ENOUGH_NUMBERS // need.activations.sizes.hidden)
    enough -= enough % MICRO_BATCH_UNIT
    most = given or max(longest, enough)
    least = given or max(longest, enough // _LEAST_SHARE)
    if is_checkpointed is None:
        is_checkpointed = (_most_tokens(need, room, most, is_checkpointed=False) or 0) < least
    if given is not None:
        return given, is_checkpointed
    fitting = _most_tokens(need, room, most, is_checkpointed=is_checkpointed) or 0
    return max(fitting, longest), is_checkpointed


def _most_tokens(need: GpuNeed, room: int, most: int, *, is_checkpointed: bool) -> int | None:
    def fits(num_tokens: int) -> bool:
        return _with_fragments(need.update(num_tokens, is_checkpointed=is_checkpointed)) <= room

    return most if fits(most) else largest(fits, MICRO_BATCH_UNIT, most)


def _with_fragments(num_bytes: int) -> int:
    return int(num_bytes * (1 + _FRAGMENTS))


def _problem(
    recipe: Recipe, division: Division, room: int, room_for_update: int, room_for_cache: int, num_workers: int
) -> str | None:
    need, capacity = division.need, division.capacity_bytes
    smallest = _with_fragments(need.update(MICRO_BATCH_UNIT, is_checkpointed=True))
    if smallest > room:
        return (
            f"model.name: weights, optimizer and gradients with the smallest update and the engine's passes take "
            f"{_gib(need.fixed + smallest)} GiB, and {_gib(capacity)} GiB can be used; {_smaller(recipe)}"
        )
    update = _with_fragments(division.update_bytes)
    if update > room_for_update:
        return _update_problem(recipe, division, room_for_update)
    least_cache = max(num_workers, 1) * longest_rollout(recipe)
    if recipe.engine.kv_cache_tokens is not None and division.cache_bytes > room_for_cache:
        return (
            f"engine.kv_cache_tokens: {division.kv_cache_tokens} tokens take {_gib(division.cache_bytes)} GiB, and "
            f"{_gib(max(0, room_for_cache))} GiB are left for the cache; {max(0, room_for_cache) // need.cache_token} "
            "tokens fit, or leave it out"
        )
    if recipe.engine.kv_cache_tokens is None and division.kv_cache_tokens < least_cache:
        return (
            f"stages.max_response_tokens: {_gib(max(0, room_for_cache))} GiB are left for the KV cache, which hold "
            f"{division.kv_cache_tokens} tokens, and {least_cache} are needed for {num_workers} rollouts of "
            f"{longest_rollout(recipe)} tokens, one in each of rollout.num_workers; lower one of the two, or "
            f"{_smaller(recipe)}"
        )
    return None


def _update_problem(recipe: Recipe, division: Division, room: int) -> str:
    need, given = division.need, recipe.train.micro_batch_tokens
    longest, num_tokens = longest_sequence(recipe), division.micro_batch_tokens
    field = "train.micro_batch_tokens" if given is not None else "stages.max_response_tokens"
    why = (
        f"{field}: an update of {num_tokens} tokens at a time takes {_gib(_with_fragments(division.update_bytes))} GiB,"
        f" and {_gib(max(0, room))} GiB are left for it"
    )
    fitting = _most_tokens(need, room, num_tokens, is_checkpointed=division.is_checkpointed) or 0
    checkpointed = _most_tokens(need, room, num_tokens, is_checkpointed=True) or 0
    if fitting >= longest:
        return f"{why}; {fitting} tokens fit, or leave it out"
    if checkpointed >= longest:
        return f"{why}; {checkpointed} tokens fit with train.gradient_checkpointing = true, or leave both out"
    if max(fitting, checkpointed) > recipe.rollout.max_prompt_tokens + MICRO_BATCH_UNIT:
        most = max(fitting, checkpointed) - recipe.rollout.max_prompt_tokens
        return f"{why}; responses of {most} tokens fit (stages.max_response_tokens), or {_smaller(recipe)}"
    return f"{why}; {_smaller(recipe)}"


def _smaller(recipe: Recipe) -> str:
    if recipe.model.lora is None:
        return "train adapters ([model.lora]), or use a GPU with more memory"
    if recipe.train.max_staleness:
        return "set train.max_staleness = 0, or use a smaller model or a GPU with more memory"
    return "use a smaller model or a GPU with more memory"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"
