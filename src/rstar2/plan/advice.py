"""Writes what does not fit, as sentences that name the field and what would help. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.plan.layout import Layout, Sharing
from rstar2.plan.memory import EngineMemory, RankMemory
from rstar2.train.memory.division import longest_rollout

GIB = 1 << 30


MAX_MICRO_BATCH_TOKENS = 1 << 17
"""The largest micro-batch that is tried: more than any recipe needs."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The recipe's `train.micro_batch_tokens`, and what would fit."""

    num_tokens: int
    """The recipe's value."""
    num_longest_tokens: int
    """Length of the longest sequence that must fit into one."""
    num_largest_tokens: int | None
    """The largest that fits, up to `MAX_MICRO_BATCH_TOKENS`; None if not even the smallest does."""
    num_largest_checkpointed_tokens: int | None
    """The largest that fits with gradient checkpointing; None if the recipe has it already, or none fits."""


def sentences(
    recipe: Recipe, layout: Layout, ranks: tuple[RankMemory, ...], engine: EngineMemory, micro_batch: MicroBatch
) -> Iterator[str]:
    over = {
        phase.name: (phase.total_bytes, rank.capacity_bytes)
        for rank in ranks
        for phase in rank.phases
        if phase.total_bytes > rank.capacity_bytes
    }
    if "train" in over:
        yield _training(layout, *over["train"], micro_batch)
        cache_stays = layout.sharing in (Sharing.ONE_MODEL, Sharing.SIDE_BY_SIDE)
        if cache_stays and engine.cache_bytes > over["train"][1] / 2:
            yield (
                f"engine.kv_cache_tokens: the cache takes {_gib(engine.cache_bytes)} GiB, also while training; a "
                "smaller one leaves more room"
            )
    if "generate" in over:
        yield _generating(recipe, layout, *over["generate"], engine)
    if engine.num_cache_tokens < longest_rollout(recipe):
        yield _cache(recipe, engine)


def _training(layout: Layout, needed_bytes: int, capacity_bytes: int, micro_batch: MicroBatch) -> str:
    needs = (
        f"train.micro_batch_tokens: {micro_batch.num_tokens} needs {_gib(needed_bytes)} GiB of the "
        f"{_gib(capacity_bytes)} GiB that may be used"
    )
    fixes = []
    if (micro_batch.num_largest_tokens or 0) >= micro_batch.num_longest_tokens:
        fixes.append(f"{micro_batch.num_largest_tokens} fits")
    checkpointed = micro_batch.num_largest_checkpointed_tokens
    if checkpointed is not None and checkpointed >= micro_batch.num_longest_tokens:
        num_tokens = min(checkpointed, micro_batch.num_tokens)
        fixes.append(f"{num_tokens} fits with train.gradient_checkpointing = true")
    if fixes:
        return f"{needs}; {', or '.join(fixes)}"
    known = [most for most in (micro_batch.num_largest_tokens, checkpointed) if most is not None]
    fitting = f"at most {max(known)} fit" if known else "no micro-batch fits"
    return (
        f"{needs}; {fitting}, and the longest sequence has {micro_batch.num_longest_tokens}. What helps: "
        f"{', '.join(_helps(layout))}, shorter responses"
    )


def _helps(layout: Layout) -> list[str]:
    helps = ["a device with more memory"]
    if not layout.is_sharded:
        return helps
    return ["more ranks", *([] if layout.is_offloaded else ["cluster.cpu_offload = true"]), *helps]


def _generating(recipe: Recipe, layout: Layout, needed_bytes: int, capacity_bytes: int, engine: EngineMemory) -> str:
    over_bytes = needed_bytes - capacity_bytes
    needs = f"needs {_gib(needed_bytes)} GiB of the {_gib(capacity_bytes)} GiB that may be used"
    if over_bytes >= engine.cache_bytes:
        return f"generating {needs}, even without a cache. What helps: {', '.join(_helps(layout))}, a smaller model"
    if recipe.engine.kv_cache_tokens is not None:
        num_tokens = int(recipe.engine.kv_cache_tokens * (1 - over_bytes / engine.cache_bytes))
        return f"engine.kv_cache_tokens: {recipe.engine.kv_cache_tokens} {needs}; {num_tokens} fits"
    share = recipe.engine.gpu_memory_share * (1 - over_bytes / engine.total_bytes)
    return f"engine.gpu_memory_share: {recipe.engine.gpu_memory_share} {needs}; {int(share * 100) / 100} fits"


def _cache(recipe: Recipe, engine: EngineMemory) -> str:
    field = "engine.kv_cache_tokens"
    if recipe.engine.kv_cache_tokens is None and recipe.engine.kind == "vllm":
        field = f"engine.gpu_memory_share: {recipe.engine.gpu_memory_share}"
    return (
        f"{field} leaves a cache of {engine.num_cache_tokens} tokens, and the longest rollout has "
        f"{longest_rollout(recipe)}; give the engine more, or take a device with more memory"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f}"
