"""Projections packed for a CPU, in the layout that oneDNN's matrix products read, at the price of a second copy.

Invariant: no pass reads a copy of weights that have changed since. A copy is made from the shared parameters when a
pass first needs it. All copies are dropped when the engine is notified of an update, and when a pass finds a
parameter's version changed. Each check sees what the other may miss: versions count neither writes through `.data` nor
those of another process, and an update that failed halfway sends no notice.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rstar2.engine.embedded.weights import LayerWeights, Linear, Projection, Weights

_TYPICAL_ROWS = 32
"""The number of rows for which oneDNN chooses the layout; it serves any number."""


@dataclass(slots=True)
class PackedLinear:
    """Rounds its input to the format of the weight; the product is in the input's own format, which is float32."""

    linear: Linear
    is_packed: bool
    """If not, oneDNN has no product for this format here, and the weight is read as it lies."""
    copy: Any = None
    """The weight in oneDNN's own layout; None until it is needed."""

    def __call__(self, input: Tensor) -> Tensor:
        rounded = input.to(self.linear.weight.dtype)
        if not self.is_packed:
            return self.linear(rounded).to(input.dtype)
        if self.copy is None:
            self.copy = torch.ops.mkldnn._reorder_linear_weight(self.linear.weight, _TYPICAL_ROWS)
        output: Tensor = torch.ops.mkldnn._linear_pointwise(rounded, self.copy, self.linear.bias, "none", [], "")
        return output.to(input.dtype)


class Packing:
    """The weights with packed projections, and the means to keep them fresh."""

    def __init__(self, weights: Weights) -> None:
        self._packed: list[PackedLinear] = []
        self._is_packed = can_pack(weights.dtype)
        self.weights = replace(
            weights, layers=tuple(map(self._pack_layer, weights.layers)), head=self._pack(weights.head)
        )
        # Parameters of another process have no version here: only `drop` notices their changes.
        self._parameters = () if weights.model is None else tuple(weights.model.parameters())
        self._versions = self._read_versions()

    def drop(self) -> None:
        self._versions = self._read_versions()
        for packed in self._packed:
            packed.copy = None

    def drop_if_stale(self) -> None:
        if self._read_versions() != self._versions:
            self.drop()

    def _read_versions(self) -> list[int]:
        return [0 if parameter.is_inference() else parameter._version for parameter in self._parameters]

    def _pack_layer(self, layer: LayerWeights) -> LayerWeights:
        return replace(
            layer,
            qkv=self._pack(layer.qkv),
            attention_out=self._pack(layer.attention_out),
            gate_up=self._pack(layer.gate_up),
            down=self._pack(layer.down),
        )

    def _pack(self, projection: Projection) -> PackedLinear:
        assert isinstance(projection, Linear)
        self._packed.append(PackedLinear(projection, self._is_packed))
        return self._packed[-1]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has packed products for weights of that format on this CPU."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
