"""Adapters merged into their layers as a pass begins, all layers of one shape at a time.

Adapters beside a layer read and write all its activations again; merged into it they cost as much as its weights.
Merged layer by layer they would be a thousand small operations a pass, and a GPU waits for whoever asks for them.

Invariant: what a layer multiplies by in training is, to the bit, what `publish` gives to the engine.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.train.served import ADAPTER, is_adapted

MAX_PARAMETERS = 1_000_000_000
"""Up to this size a pack of sequences is far larger than the weights."""


@dataclass(slots=True)
class _Layer:
    name: str
    module: Any
    weight: Tensor | None = field(default=None, repr=False)
    """Merged, since the pass began."""

    def forward(self, input: Tensor) -> Tensor:
        assert self.weight is not None, "the pass began with the model"
        return F.linear(input, self.weight, self.module.get_base_layer().bias)


class _Alike:
    """Layers of one shape. Their base weights are moved to lie behind one another, so that they can be read at once."""

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self.layers = layers
        bases = [layer.module.get_base_layer().weight for layer in layers]
        self._base_LOI = torch.stack([base.data for base in bases])
        for base, place in zip(bases, self._base_LOI, strict=True):
            base.data = place
        self._scaling: float = layers[0].module.scaling[ADAPTER]

    def merge(self) -> Tensor:
        """The sum is taken in float32 and rounded once."""
        down_LRI = torch.stack([layer.module.lora_A[ADAPTER].weight for layer in self.layers]).float()
        up_LOR = torch.stack([layer.module.lora_B[ADAPTER].weight for layer in self.layers]).float()
        merged_LOI = torch.baddbmm(self._base_LOI.float(), up_LOR, down_LRI, alpha=self._scaling)
        return merged_LOI.to(self._base_LOI.dtype)


class MergedAdapters:
    def __init__(self, network: Any, groups: Sequence[_Alike]) -> None:
        self._groups = groups
        for group in groups:
            for layer in group.layers:
                layer.module.forward = layer.forward
        network.model.register_forward_pre_hook(lambda *_: self._merge_all())

    @classmethod
    def in_passing(cls, network: Any) -> "MergedAdapters | None":
        """None where adapters beside the layers are cheaper, or drop out at random."""
        num_parameters = sum(parameter.numel() for parameter in network.parameters())
        layers = [_Layer(name, module) for name, module in network.named_modules() if is_adapted(module)]
        has_dropout = any(isinstance(layer.module.lora_dropout[ADAPTER], torch.nn.Dropout) for layer in layers)
        if num_parameters > MAX_PARAMETERS or has_dropout:
            return None
        alike: defaultdict[torch.Size, list[_Layer]] = defaultdict(list)
        for layer in layers:
            alike[layer.module.get_base_layer().weight.shape].append(layer)
        return cls(network, [_Alike(several) for several in alike.values()])

    def publish(self, targets: dict[str, Tensor]) -> None:
        """Into the weights of these names, which an engine reads."""
        for group in self._groups:
            for layer, weight in zip(group.layers, group.merge(), strict=True):
                targets[layer.name].copy_(weight)

    def _merge_all(self) -> None:
        for group in self._groups:
            for layer, weight in zip(group.layers, group.merge().unbind(), strict=True):
                layer.weight = weight
