"""How much of a GPU a run uses: how busy it was, how much of its memory was taken, how fast it can multiply.

Busy is the share of the time in which at least one kernel ran, as the driver counts it.

The driver's library is asked directly, from a thread, ten times a second: a tool in a separate process would cost more
than what it measures. Without an NVIDIA driver nothing is reported.
"""

import ctypes
import threading
import time
from typing import Self

import torch

SAMPLE_PERIOD_S = 0.1
LIBRARY = "libnvidia-ml.so.1"


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuWatch:
    """Used as a context: it samples the GPU's use inside it, if the driver can be asked."""

    def __init__(self, device: torch.device) -> None:
        self._samples: list[int] = []
        self._peak_bytes = 0
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

    def use(self) -> dict[str, float]:
        """The busy share and the peak memory of all processes together since the last call; empty if the driver cannot
        be asked."""
        samples, self._samples = self._samples, []
        peak_bytes, self._peak_bytes = self._peak_bytes, 0
        if not samples:
            return {}
        return {"gpu_busy_share": sum(samples) / (100 * len(samples)), "gpu_memory_gib": peak_bytes / 2**30}

    def _watch(self) -> None:
        busy, memory = _Utilization(), _Memory()
        while self._library is not None and not self._is_over.wait(SAMPLE_PERIOD_S):
            if not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy)):
                self._samples.append(busy.gpu)
            if not self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
                self._peak_bytes = max(self._peak_bytes, memory.used)


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


_PRODUCT_SIZE = 8192
_NUM_PRODUCTS = 10


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product on an idle GPU, the rate that `mfu` is a share of."""
    first, second = (torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, device=device, dtype=dtype) for _ in range(2))
    for _ in range(3):
        first @ second
    torch.cuda.synchronize(device)
    began_s = time.perf_counter()
    for _ in range(_NUM_PRODUCTS):
        first @ second
    torch.cuda.synchronize(device)
    return _NUM_PRODUCTS * 2 * _PRODUCT_SIZE**3 / (time.perf_counter() - began_s)
