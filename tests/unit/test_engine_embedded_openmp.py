"""Workers that are given back end, and come again when there is work."""

import subprocess
import sys
import threading

import pytest

from rstar2.engine.embedded import openmp

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not openmp._libraries(), reason="PyTorch computes with another OpenMP here"),
]

COUNT_THREADS = """
from pathlib import Path
import torch
from rstar2.engine.embedded import openmp

torch.set_num_threads(4)
for _ in range(2):
    torch.randn(1000, 1000).exp_()
    print(len(list(Path("/proc/self/task").iterdir())))
    openmp.release_workers()
    print(len(list(Path("/proc/self/task").iterdir())))
"""


def test_workers_end_and_come_again() -> None:
    # In a process of its own: threads of other tests come and go.
    printed = subprocess.run([sys.executable, "-c", COUNT_THREADS], capture_output=True, text=True, check=True).stdout
    with_workers, without, *again = map(int, printed.split())
    assert with_workers - without == 3
    assert again == [with_workers, without]


def test_a_thread_without_workers_has_none_to_give_back() -> None:
    thread = threading.Thread(target=openmp.release_workers)
    thread.start()
    thread.join()
