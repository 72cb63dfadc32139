"""Workers that are given back end, and come again when there is work."""

import threading
from pathlib import Path

import pytest
import torch

from rstar2.engine.embedded import openmp

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not openmp._libraries(), reason="PyTorch computes with another OpenMP here"),
]


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_workers_end_and_come_again() -> None:
    counts: list[int] = []

    def work() -> None:
        # This thread's own, whatever threads there were before.
        torch.set_num_threads(4)
        for _ in range(2):
            torch.randn(1000, 1000).exp_()
            counts.append(count_threads())
            openmp.release_workers()
            counts.append(count_threads())

    num_threads = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.set_num_threads(num_threads)
    assert counts == [counts[0], counts[0] - 3] * 2


def test_a_thread_without_workers_has_none_to_give_back() -> None:
    thread = threading.Thread(target=openmp.release_workers)
    thread.start()
    thread.join()
