"""Measures what a micro-batch keeps in memory between its forward and backward pass, by running it on the meta device.

One decoder layer and the two ends of the model (embedding, last norm, head, loss) are run forward and backward on
tensors without data, and every byte that operators allocate is counted while it lives. All layers are alike, so the
total is layers times one layer, and the larger of what a layer and what the head need beyond that while they run.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rstar2.plan.meta_model import ModelPlan
from rstar2.train.learning.forward import ApplyHead, in_pieces, plain_head
from rstar2.train.memory.activations import ActivationBytes


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts allocated bytes: after `with LiveBytes() as live:` ran something, see `live.now_bytes` and
    `live.peak_bytes()`.

    Every storage that an operator creates is counted once, from its creation until its last reference is dropped,
    including those of views and saved tensors, on any device. Storages that existed before are not counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now_bytes = 0
        self._changes: list[tuple[int, int]] = []
        """(number of the storage, bytes allocated or freed), in order."""
        self._numbers: dict[int, int] = {}
        """Numbers of the live storages, by address of the storage object."""
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
        """The peak of live bytes, without the storages of some tensors that are still alive."""
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
        self._watch(storage, lambda address: self._change(self._numbers.pop(address), -num_bytes))

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


class ActivationMeter:
    """Measures one model at any size of micro-batch. On a device other than meta it really computes, for comparison."""

    def __init__(self, plan: ModelPlan, device: str = "meta") -> None:
        self._plan = plan
        self._model = plan.build(plan.dtype, num_layers=1)
        if device != "meta":
            self._model.to_empty(device=device)
        self._device = device

    def measure(self, num_tokens: int) -> ActivationBytes:
        """The activations of a micro-batch of `num_tokens`, all of which are trained on."""
        plan = self._plan
        sizes = (1, num_tokens, plan.config.hidden_size)
        hidden = torch.empty(sizes, dtype=plan.dtype, device=self._device, requires_grad=True)
        kept, layer_peak = _layer(self._model, hidden)
        return ActivationBytes(
            kept_layers=hidden.nbytes + plan.num_layers * kept,
            one_layer=layer_peak - kept,
            ends=_ends(self._model, hidden[0].detach().requires_grad_(), gpu_head if plan.is_on_gpu else plain_head),
        )


def _layer(model: Any, hidden: Tensor) -> tuple[int, int]:
    """The bytes that one layer keeps after its forward pass, and its peak."""
    model.zero_grad(set_to_none=True)
    layer = model.model.layers[0]
    positions = torch.zeros(1, hidden.shape[1], dtype=torch.long, device=hidden.device)
    rotary = model.model.rotary_emb(hidden, positions)
    live = LiveBytes()
    with live:
        out = layer(hidden, attention_mask=None, position_embeddings=rotary, position_ids=positions)
        kept = live.now_bytes
        gradient = torch.empty_like(out)
        out.backward(gradient)
        del out, gradient
    return kept, live.peak_bytes(without=_gradients(model))


def _ends(model: Any, hidden: Tensor, apply_head: ApplyHead) -> int:
    model.zero_grad(set_to_none=True)
    targets = torch.zeros(hidden.shape[0], dtype=torch.long, device=hidden.device)
    live = LiveBytes()
    with live:
        normed = model.model.norm(hidden)[targets]
        log_probs, _entropies = in_pieces(apply_head, model.lm_head, normed, targets, 1.0)
        log_probs.sum().backward()  # type: ignore[no-untyped-call]
    return live.peak_bytes(without=_gradients(model))


def gpu_head(head: Any, hidden: Tensor, targets: Tensor, _temperature: float) -> tuple[Tensor, Tensor]:
    """A head that allocates what the trainer's GPU kernels do: only the logits, and later their gradient."""
    log_probs, entropies = _GpuKernel.apply(head(hidden), targets)  # type: ignore[no-untyped-call]
    return log_probs, entropies


class _GpuKernel(torch.autograd.Function):
    """Allocates and keeps the same tensors as the trainer's `LogProbs`, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits)
        log_probs, entropies = (torch.empty(len(targets), dtype=torch.float32, device=logits.device) for _ in range(2))
        ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        return torch.empty_like(logits), None


def _gradients(model: Any) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]
