"""Counters and histograms in the Prometheus text format, under vLLM's names where the meaning is the same."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rstar2.engine.protocol import EngineLoad
from rstar2.histogram import Histogram

BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class Level(NamedTuple):
    """A gauge that vLLM does not have."""

    name: str
    meaning: str
    value: float


class ServeMetrics:
    def __init__(self, model_name: str) -> None:
        escaped = model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._label = f'engine="0",model_name="{escaped}"'
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.finished: Counter[str] = Counter()
        self.responses: Counter[int] = Counter()
        self.first_token, self.between_tokens, self.full_request = (Histogram(BOUNDS_S) for _ in range(3))

    def render(self, load: EngineLoad, num_waiting: int, levels: Sequence[Level] = ()) -> str:
        """The metrics page. `num_waiting` requests wait for weights or for the end of a pause."""
        return "\n".join((*self._lines(load, num_waiting), *_level_lines(levels), ""))

    def _lines(self, load: EngineLoad, num_waiting: int) -> Iterator[str]:
        label = self._label
        used = 1 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0
        for name, meaning, level in (
            ("num_requests_running", "Sequences that the engine runs.", load.num_running),
            ("num_requests_waiting", "Sequences that wait.", load.num_waiting + num_waiting),
            ("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all of it.", used),
        ):
            yield from _head(f"vllm:{name}", meaning, "gauge")
            yield f"vllm:{name}{{{label}}} {level:g}"
        yield from _head("vllm:cache_config_info", "Size of the KV cache.", "gauge")
        yield (f'vllm:cache_config_info{{block_size="{load.block_size}",num_gpu_blocks="{load.num_blocks}",{label}}} 1')
        for name, meaning, count in (
            ("num_preemptions_total", "Sequences that were preempted.", load.num_preemptions),
            ("prompt_tokens_total", "Tokens of prompts.", self.num_prompt_tokens),
            ("prompt_tokens_cached_total", "Tokens of prompts that the prefix cache had.", self._num_cached(load)),
            ("generation_tokens_total", "Tokens of answers.", self.num_generated_tokens),
        ):
            yield from _head(f"vllm:{name}", meaning, "counter")
            yield f"vllm:{name}{{{label}}} {count}"
        yield from _head("vllm:request_success_total", "Sequences that ended, by reason.", "counter")
        for reason, count in sorted(self.finished.items()):
            yield f'vllm:request_success_total{{finished_reason="{reason}",{label}}} {count}'
        for name, meaning, histogram in (
            ("time_to_first_token_seconds", "From admission to the first token.", self.first_token),
            ("inter_token_latency_seconds", "Between two tokens of a sequence.", self.between_tokens),
            ("e2e_request_latency_seconds", "From admission to the last token.", self.full_request),
        ):
            yield from _head(f"vllm:{name}", meaning, "histogram")
            yield from histogram.lines(f"vllm:{name}", label)
        yield from _head("rstar2_serve_responses_total", "HTTP responses, by code.", "counter")
        for code, count in sorted(self.responses.items()):
            yield f'rstar2_serve_responses_total{{code="{code}"}} {count}'

    def _num_cached(self, load: EngineLoad) -> int:
        """Prompt tokens from the prefix cache: all except those that the engine prefilled."""
        return max(0, self.num_prompt_tokens - load.num_prefill_tokens) if load.num_blocks else 0


def _level_lines(levels: Sequence[Level]) -> Iterator[str]:
    for name, meaning, value in levels:
        yield from _head(name, meaning, "gauge")
        yield f"{name} {value:g}"


def _head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
