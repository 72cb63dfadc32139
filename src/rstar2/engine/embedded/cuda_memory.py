"""Memory of a GPU at a fixed address that can be given back and taken again, for a cache that recorded graphs read.

CUDA's driver reserves addresses apart from memory: recorded graphs keep the addresses, and while the engine is paused
another process has the memory. PyTorch's allocator knows nothing of it.
"""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from rstar2.errors import InfrastructureError

_LIBRARY = "libcuda.so.1"
_PINNED, _ON_DEVICE, _READ_AND_WRITE = 1, 1, 3
_GRANULARITY = 1 << 21
"""Bytes of a page, the unit of what is reserved and taken."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class ReturnableTensor:
    """`tensor` is all zeros after `take`, and must not be read or written between `give_back` and the next `take`."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._driver = ctypes.CDLL(_LIBRARY)
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        self._location = _Location(_ON_DEVICE, index)
        num_bytes = prod(shape) * dtype.itemsize
        self._size = ctypes.c_size_t(-(-num_bytes // _GRANULARITY) * _GRANULARITY)
        self._address = ctypes.c_uint64()
        self._handle: ctypes.c_uint64 | None = None
        nothing = ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(self._address), self._size, ctypes.c_size_t(0), nothing, nothing)
        self._take()
        flat = torch.as_tensor(_Interface(self._address.value, num_bytes), device=device)
        self.tensor: Tensor = flat.view(dtype).view(*shape)
        self.tensor.zero_()

    @property
    def is_taken(self) -> bool:
        return self._handle is not None

    def take(self) -> None:
        """Take the memory again; does nothing if it was not given back."""
        if self._handle is None:
            self._take()
            self.tensor.zero_()

    def give_back(self) -> None:
        """Gives the memory back after the work that reads it; the tensor's values are lost."""
        if self._handle is not None:
            torch.cuda.synchronize(self.tensor.device)
            self._call("cuMemUnmap", self._address, self._size)
            self._call("cuMemRelease", self._handle)
            self._handle = None

    def _take(self) -> None:
        handle, nothing = ctypes.c_uint64(), ctypes.c_uint64(0)
        properties = _Properties(type=_PINNED, location=self._location)
        self._call("cuMemCreate", ctypes.byref(handle), self._size, ctypes.byref(properties), nothing)
        self._handle = handle
        self._call("cuMemMap", self._address, self._size, ctypes.c_size_t(0), handle, nothing)
        access = _Access(self._location, _READ_AND_WRITE)
        self._call("cuMemSetAccess", self._address, self._size, ctypes.byref(access), ctypes.c_size_t(1))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            free_bytes, _ = torch.cuda.mem_get_info()
            raise InfrastructureError(
                f"the GPU's driver refused {name} for a KV cache of {self._size.value / 2**30:.1f} GiB with code "
                f"{code}; {free_bytes / 2**30:.1f} GiB are free: set engine.kv_cache_tokens lower"
            )


class _Interface:
    """Device memory, as an object that PyTorch can wrap as a tensor of bytes."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
