"""Counters and histograms in the Prometheus text format, version 0.0.4."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rstar2.histogram import Histogram
from rstar2.sandbox.execution import Execution
from rstar2.sandbox.http.schema import NodeInfo

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PREFIX = "rstar2_sandbox_"


class ServiceMetrics:
    def __init__(self) -> None:
        self.executions: Counter[str] = Counter()
        self.responses: Counter[int] = Counter()
        self._wall, self._cpu, self._queue, self._request = (Histogram(BOUNDS_S) for _ in range(4))

    def count_execution(self, execution: Execution) -> None:
        self.executions[execution.status] += 1
        self._wall.observe(execution.wall_s)
        self._cpu.observe(execution.cpu_s)
        self._queue.observe(execution.queue_s)

    def count_response(self, status: int, seconds: float) -> None:
        self.responses[status] += 1
        self._request.observe(seconds)

    def render(self, gauges: Mapping[str, float], nodes: Sequence[NodeInfo] = ()) -> str:
        """The metrics page. `gauges` are current values by name; `nodes` are the nodes behind a gateway."""
        return "\n".join((*self._lines(gauges), *_node_lines(nodes), ""))

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield f"# HELP {PREFIX}executions_total Finished executions, by how they ended."
        yield f"# TYPE {PREFIX}executions_total counter"
        for status, count in sorted(self.executions.items()):
            yield f'{PREFIX}executions_total{{status="{status}"}} {count}'
        yield f"# HELP {PREFIX}responses_total HTTP responses, by code."
        yield f"# TYPE {PREFIX}responses_total counter"
        for code, count in sorted(self.responses.items()):
            yield f'{PREFIX}responses_total{{code="{code}"}} {count}'
        for name, histogram, meaning in (
            ("execution_wall_seconds", self._wall, "Wall-clock time of executions."),
            ("execution_cpu_seconds", self._cpu, "CPU time of executions."),
            ("execution_queue_seconds", self._queue, "Time that executions waited for a worker."),
            ("request_seconds", self._request, "Time from a request's head to the end of its answer."),
        ):
            yield f"# HELP {PREFIX}{name} {meaning}"
            yield f"# TYPE {PREFIX}{name} histogram"
            yield from histogram.lines(PREFIX + name)
        for name, level in gauges.items():
            yield f"# TYPE {PREFIX}{name} gauge"
            yield f"{PREFIX}{name} {level:g}"


def _node_lines(nodes: Sequence[NodeInfo]) -> Iterator[str]:
    for name, kind, meaning, level in _OF_A_NODE if nodes else ():
        yield f"# HELP {PREFIX}node_{name} {meaning}"
        yield f"# TYPE {PREFIX}node_{name} {kind}"
        for node in nodes:
            url = node.url.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
            yield f'{PREFIX}node_{name}{{node="{url}"}} {level(node):g}'


_OF_A_NODE: tuple[tuple[str, str, str, Callable[[NodeInfo], float]], ...] = (
    ("ready", "gauge", "1 if the node is given calls.", lambda node: node.state == "ready"),
    ("slots", "gauge", "What the node can do at a time.", lambda node: node.num_slots),
    ("outstanding", "gauge", "Calls that the node has and has not answered.", lambda node: node.num_outstanding),
    ("answered_total", "counter", "Calls that the node answered.", lambda node: node.num_answered),
    ("rerun_total", "counter", "Calls rerun elsewhere because of the node.", lambda node: node.num_rerun),
)
