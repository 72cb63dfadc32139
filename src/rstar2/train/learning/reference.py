"""The reference policy of the KL term, run in place of the policy that learns.

Invariant: outside `in_place` the policy's weights are its own, bit for bit. Only trained weights are copied: with
adapters, these are the adapters.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rstar2.train.policy.policy import Policy


class Reference:
    def __init__(self, policy: Policy) -> None:
        """Takes the policy as it is now as the reference."""
        self._policy = policy
        self.state = {name: parameter.detach().clone() for name, parameter in policy.parameters().items()}
        """The weights of the reference, which may be overwritten with those of another policy."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside it the policy computes as the reference, without dropout. Engines that share its tensors must be
        paused."""
        modes = [(module, module.training) for module in self._policy.network.modules()]
        self._swap()
        self._policy.network.eval()
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            self._swap()

    def _swap(self) -> None:
        self._policy.settle()
        with torch.no_grad():
            for name, parameter in self._policy.parameters().items():
                kept: Tensor = self.state[name]
                learnt = parameter.clone()
                parameter.copy_(kept)
                kept.copy_(learnt)
