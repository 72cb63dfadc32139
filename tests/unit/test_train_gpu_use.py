"""Without a GPU there is nothing to say of it, and nothing runs."""

import threading

import pytest
import torch

from rstar2.train.reporting.gpu_use import GpuWatch

pytestmark = pytest.mark.unit


def test_a_cpu_has_no_busy_share() -> None:
    num_threads = threading.active_count()
    with GpuWatch(torch.device("cpu")) as watch:
        assert threading.active_count() == num_threads
        assert watch.use() == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_at_work_is_busy() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    with GpuWatch(matrix.device) as watch:
        for _ in range(400):
            matrix = torch.tanh(matrix @ matrix)
        torch.cuda.synchronize()
        use = watch.use()
    assert use["gpu_busy_share"] > 0.5
    assert 0 < use["gpu_memory_gib"] < torch.cuda.get_device_properties(0).total_memory / 2**30 + 1
