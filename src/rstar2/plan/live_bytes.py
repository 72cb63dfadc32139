"""Which tensors are alive while code runs, in bytes, on any device: on meta too, where nothing is ever allocated.

Every storage that an operator makes is counted once, from its making until nothing holds it any more, views and saved
tensors included. Storages that were there before are not counted.
"""

import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with LiveBytes() as live:` run something; `live.now_bytes` and `live.peak_bytes()` say what it held."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now_bytes = 0
        self._changes: list[tuple[int, int]] = []
        """(number of the storage, bytes that came or went), in their order."""
        self._numbers: dict[int, int] = {}
        """Of the storages alive now, by address of the storage object."""
        self._foreign: set[int] = set()
        self._watches: dict[int, weakref.ref[UntypedStorage]] = {}
        self._num_storages = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            if id(storage) not in self._numbers:
                self._watch(storage, self._foreign.discard)
                self._foreign.add(id(storage))
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in self._numbers and id(storage) not in self._foreign:
                self._count(storage)
        return result

    def peak_bytes(self, without: Iterable[Tensor | None] = ()) -> int:
        """The most that was alive at one moment, leaving out the storages of some tensors that are still alive."""
        left_out = {self._numbers.get(id(tensor.untyped_storage())) for tensor in without if tensor is not None}
        now = peak = 0
        for number, change in self._changes:
            if number not in left_out:
                now += change
                peak = max(peak, now)
        return peak

    def _count(self, storage: UntypedStorage) -> None:
        number, num_bytes = self._num_storages, storage.nbytes()
        self._num_storages += 1
        self._numbers[id(storage)] = number
        self._change(number, num_bytes)
        self._watch(storage, partial(self._forget, num_bytes))

    def _forget(self, num_bytes: int, address: int) -> None:
        self._change(self._numbers.pop(address), -num_bytes)

    def _change(self, number: int, num_bytes: int) -> None:
        self.now_bytes += num_bytes
        self._changes.append((number, num_bytes))

    def _watch(self, storage: UntypedStorage, on_end: Any) -> None:
        address = id(storage)
        if address in self._watches:
            return

        def end(_: weakref.ref[UntypedStorage]) -> None:
            del self._watches[address]
            on_end(address)

        self._watches[address] = weakref.ref(storage, end)


def _storages(values: Any) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
