"""How busy the GPU was: the share of the time in which at least one kernel ran, as its driver counts it.

The driver's library is asked directly, from a thread, ten times a second: a tool in a separate process would cost more
than what it measures. Where there is no NVIDIA driver there is nothing to say.
"""

import ctypes
import threading
from typing import Self

import torch

SAMPLE_PERIOD_S = 0.1
LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class GpuWatch:
    """Used as a context: it looks while inside it, if the driver can be asked at all."""

    def __init__(self, device: torch.device) -> None:
        self._samples: list[int] = []
        self._is_over = threading.Event()
        self._library, self._handle = _open(device)
        self._thread = threading.Thread(target=self._watch, name="rstar2-gpu-watch", daemon=True)

    def __enter__(self) -> Self:
        if self._library is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def share(self) -> float | None:
        """The busy share since the last call."""
        samples, self._samples = self._samples, []
        return sum(samples) / (100 * len(samples)) if samples else None

    def _watch(self) -> None:
        found = _Utilization()
        while not self._is_over.wait(SAMPLE_PERIOD_S):
            if self._library is not None and not self._library.nvmlDeviceGetUtilizationRates(
                self._handle, ctypes.byref(found)
            ):
                self._samples.append(found.gpu)


def _open(device: torch.device) -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    """The driver's library and its handle of the device; no library if it cannot be asked."""
    handle = ctypes.c_void_p()
    if device.type != "cuda":
        return None, handle
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None, handle
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    is_open = not library.nvmlInit_v2() and not library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle))
    return (library if is_open else None), handle
