"""The worker threads that OpenMP keeps for each thread that computes, and how to release them.

Every thread that runs a parallel operation has its own workers from then on. With more of them than cores in the
process, GNU's OpenMP lets a worker sleep at once when it has nothing to do, and each of the thousand operations of a
decode step pays for waking it: a third of the engine's speed on two cores, and likewise of a trainer's beside it. So a
thread that will not compute for a while releases its workers; they restart, in a fraction of a millisecond, when they
are needed.
"""

import ctypes
import sys
from functools import cache
from pathlib import Path

_SOFT_PAUSE = 1
"""OpenMP's `omp_pause_soft`."""


def release_workers() -> None:
    """Releases the workers of the calling thread. Does nothing if the OpenMP library is missing or lacks the
    function."""
    for library in _libraries():
        library.omp_pause_resource_all(_SOFT_PAUSE)


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """The OpenMP libraries that this process has loaded: PyTorch brings its own."""
    if sys.platform != "linux":
        return ()
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {fields[5] for line in lines if len(fields := line.split(maxsplit=5)) == 6 and "/libgomp" in fields[5]}
    libraries = (ctypes.CDLL(path) for path in sorted(paths))
    return tuple(library for library in libraries if hasattr(library, "omp_pause_resource_all"))
