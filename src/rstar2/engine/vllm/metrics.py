"""Reads vLLM's metrics page as an `EngineLoad`. Pure.

A server with several engines behind it (data parallelism) counts as one: blocks, queues and counters are added up.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

from rstar2.engine.protocol import EngineLoad
from rstar2.errors import UserError

_SAMPLE = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_Samples = Mapping[str, list[tuple[dict[str, str], float]]]


def load_of(page: str) -> EngineLoad:
    """The load that a metrics page reports. UserError if the page is not vLLM's."""
    samples = _samples(page)
    caches = {labels.get("engine", "0"): labels for labels, _ in samples["cache_config_info"]}
    if not caches or "kv_cache_usage_perc" not in samples:
        raise UserError("the metrics are not those of a vLLM that runs a model")
    num_blocks = {engine: int(labels["num_gpu_blocks"]) for engine, labels in caches.items()}
    num_used_blocks = sum(
        round(usage * num_blocks[labels.get("engine", "0")]) for labels, usage in samples["kv_cache_usage_perc"]
    )
    return EngineLoad(
        block_size=int(next(iter(caches.values()))["block_size"]),
        num_blocks=sum(num_blocks.values()),
        # The usage counts blocks in use: those that are only cached are evicted when they are needed.
        num_free_blocks=sum(num_blocks.values()) - num_used_blocks,
        # vLLM does not say how many are cached, nor how much was recomputed after a preemption.
        num_cached_blocks=0,
        num_running=_total(samples, "num_requests_running"),
        num_waiting=_total(samples, "num_requests_waiting"),
        num_preemptions=_total(samples, "num_preemptions_total"),
        num_recomputed_tokens=0,
        num_prefill_tokens=_total(samples, "prompt_tokens_total") - _total(samples, "prompt_tokens_cached_total"),
        num_generated_tokens=_total(samples, "generation_tokens_total"),
    )


def _samples(page: str) -> _Samples:
    samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for found in _SAMPLE.finditer(page):
        samples[found["name"]].append((dict(_LABEL.findall(found["labels"] or "")), float(found["value"])))
    return samples


def _total(samples: _Samples, name: str) -> int:
    return round(sum(value for _, value in samples.get(name, ())))
