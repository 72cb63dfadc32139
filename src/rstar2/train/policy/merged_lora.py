"""A model whose adapters are merged into its weights and can still be trained.

Unmerged adapters read and write all activations of a layer once more, and round differently from the merged weights
that engines serve. Here a pass multiplies by the merged weights. Their gradient is never computed: an adapter's own
needs only two narrow products. The weights are merged again when the adapters have changed, not with every pass.

Invariant: a layer's weights in training equal, to the bit, those that `served_state` gives to the engines.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from rstar2.engine.embedded.weights import Multiply
from rstar2.train.policy.served_weights import ADAPTER, is_adapted, merged_weight


class AdaptedLinear(torch.autograd.Function):
    """`apply(x, weight, bias, multiply, adapters, *adapters.parameters)`: one product, by the merged weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        multiply: Multiply,
        adapters: "Adapters",
        *_parameters: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.adapters = adapters
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        (gradient,) = gradients
        dx = gradient @ weight if ctx.needs_input_grad[0] else None
        found = ctx.adapters.gradients(x.flatten(0, -2), gradient.flatten(0, -2))
        return dx, None, None, None, None, *found


class Adapters:
    """Adapters of projections that read the same input, and whose outputs are adjacent.

    Suffixes: T tokens, I inputs, O outputs of one projection, R rank.
    """

    def __init__(self, modules: Sequence[Any], weights: Sequence[Tensor]) -> None:
        self._modules = modules
        self._weights = weights
        """The merged weight of each module, written by `merge`."""
        ends = torch.tensor([len(weight) for weight in weights]).cumsum(0).tolist()
        self._columns = [slice(end - len(weight), end) for end, weight in zip(ends, weights, strict=True)]
        self._downs = [module.lora_A[ADAPTER].weight for module in modules if is_adapted(module)]
        self._ups = [module.lora_B[ADAPTER].weight for module in modules if is_adapted(module)]
        self.parameters: tuple[Tensor, ...] = (*self._downs, *self._ups)
        self._merged_version: tuple[int, ...] | None = None
        self._down_RI = weights[0]
        self._up_OR: list[Tensor] = []

    def merge(self) -> None:
        """Merge the adapters, if they have changed."""
        version = tuple(parameter._version for parameter in self.parameters)
        if version == self._merged_version:
            return
        dtype = self._weights[0].dtype
        with torch.no_grad():
            for module, weight in zip(self._modules, self._weights, strict=True):
                if is_adapted(module):
                    weight.copy_(merged_weight(module, dtype))
            self._down_RI = torch.cat([down.detach() for down in self._downs]).to(dtype)
            self._up_OR = [up.detach().to(dtype) for up in self._ups]
        self._merged_version = version

    def gradients(self, x_TI: Tensor, gradient_TO: Tensor) -> tuple[Tensor, ...]:
        """The gradients of `parameters`, in float32."""
        adapted = [
            (columns, module.scaling[ADAPTER])
            for columns, module in zip(self._columns, self._modules, strict=True)
            if is_adapted(module)
        ]
        ranks = [len(down) for down in self._downs]
        narrow_TR = torch.split(x_TI @ self._down_RI.T, ranks, dim=1)
        back_TR, ups = [], []
        for (columns, scaling), up_OR, lowered_TR in zip(adapted, self._up_OR, narrow_TR, strict=True):
            own_TO = gradient_TO[:, columns]
            back_TR.append(own_TO @ up_OR * scaling)
            ups.append(_product(own_TO.T, lowered_TR) * scaling)
        downs = torch.split(_product(torch.cat(back_TR, dim=1).T, x_TI), ranks)
        return *downs, *ups


def _product(first: Tensor, second: Tensor) -> Tensor:
    """The product in float32, because it sums over all tokens of a pack."""
    if first.is_cuda and first.dtype is not torch.float32:
        return torch.mm(first, second, out_dtype=torch.float32)
    return first.float() @ second.float()


class MergedModel:
    """A copy of the base model, made before adapters are added to it. Modules without adapters are shared, not
    copied."""

    def __init__(self, base: Any, target_modules: Sequence[str]) -> None:
        copied = {
            id(module.weight) for name, module in base.named_modules() if name.rpartition(".")[2] in target_modules
        }
        shared = {id(parameter): parameter for parameter in base.parameters() if id(parameter) not in copied}
        self.model = copy.deepcopy(base, shared)
        self.model.requires_grad_(False)
        self._adapters: list[Adapters] = []

    def adapters(self, network: Any, names: Sequence[str]) -> Adapters | None:
        """The adapters of the modules with these names in `network`, to be merged into the modules of the same names
        here; None if these modules have no adapters."""
        modules = [network.get_submodule(name) for name in names]
        if not any(is_adapted(module) for module in modules):
            return None
        adapters = Adapters(modules, [self.model.get_submodule(name).weight for name in names])
        self._adapters.append(adapters)
        return adapters

    def merge(self) -> None:
        for adapters in self._adapters:
            adapters.merge()

    def adapt_each(self, network: Any) -> None:
        """Lets every adapted layer learn by itself, for models that run as `transformers` runs them."""
        for name, module in network.named_modules():
            if is_adapted(module):
                adapters = self.adapters(network, [name])
                assert adapters is not None
                _adapt(self.model.get_submodule(name), adapters)


def _adapt(layer: Any, adapters: Adapters) -> None:
    def forward(x: Tensor) -> Tensor:
        out: Tensor = AdaptedLinear.apply(x, layer.weight, layer.bias, F.linear, adapters, *adapters.parameters)  # type: ignore[no-untyped-call]
        return out

    layer.forward = forward
