"""The metrics page is what Prometheus reads."""

import pytest

from rstar2.sandbox import Execution, ExecutionStatus
from rstar2.sandbox.http.metrics import BOUNDS_S, ServiceMetrics

pytestmark = pytest.mark.unit


def test_counters_histograms_and_gauges() -> None:
    metrics = ServiceMetrics()
    for wall_s in (0.0005, 0.001, 0.02, 1000.0):
        metrics.count_execution(Execution(ExecutionStatus.OK, wall_s=wall_s))
    metrics.count_execution(Execution(ExecutionStatus.TIMEOUT, wall_s=10.0))
    metrics.count_response(200, 0.01)
    lines = metrics.render({"in_flight": 3}).splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    wall = "rstar2_sandbox_execution_wall_seconds"
    assert samples['rstar2_sandbox_executions_total{status="ok"}'] == "4"
    assert samples['rstar2_sandbox_executions_total{status="timeout"}'] == "1"
    assert samples['rstar2_sandbox_responses_total{code="200"}'] == "1"
    assert samples["rstar2_sandbox_in_flight"] == "3"
    assert samples[f'{wall}_bucket{{le="0.001"}}'] == "2"
    assert samples[f'{wall}_bucket{{le="10.0"}}'] == "4"
    assert samples[f'{wall}_bucket{{le="+Inf"}}'] == samples[f"{wall}_count"] == "5"
    counts = [int(samples[f'{wall}_bucket{{le="{bound}"}}']) for bound in BOUNDS_S]
    assert counts == sorted(counts)
    assert float(samples[f"{wall}_sum"]) == pytest.approx(1010.0215)
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert all(any(name.startswith(kind) for kind in typed) for name in samples)
