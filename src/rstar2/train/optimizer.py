"""AdamW on float32 numbers, whatever format the model's own are in.

A learning rate of 1e-6 moves a bfloat16 weight by less than its last bit, so such weights are updated in float32 copies
and rounded back into place; the model's tensors stay where they are, and whoever shares them sees the new values.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Optimizer:
    def __init__(self, parameters: Sequence[Tensor], weight_decay: float) -> None:
        self._parameters = list(parameters)
        self._weight_decay = weight_decay
        self._masters = [
            parameter if parameter.dtype is torch.float32 else parameter.detach().float().clone()
            for parameter in self._parameters
        ]
        self._adam = self._fresh()

    def _fresh(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._masters, lr=0.0, weight_decay=self._weight_decay)

    def reset(self) -> None:
        """Forget every moment; the weights stay."""
        self._adam = self._fresh()

    def step(self, lr: float, max_grad_norm: float) -> float:
        """One update from the gradients that were summed up; they are cleared. The norm they had before clipping."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                master.grad = None if parameter.grad is None else parameter.grad.float()
                parameter.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, max_grad_norm))
        if math.isfinite(norm):
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self._write_back()
        self._adam.zero_grad(set_to_none=True)
        return norm

    def _write_back(self) -> None:
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        copies = [
            master for parameter, master in zip(self._parameters, self._masters, strict=True) if master is not parameter
        ]
        return {"adam": self._adam.state_dict(), "masters": copies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._adam.load_state_dict(state["adam"])
        copies = iter(state["masters"])
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    master.copy_(next(copies))


def warmup_factor(step: int, num_warmup_steps: int) -> float:
    """Of the learning rate at `step`, counted from 0: it rises over the warm-up and then stays."""
    return min(1.0, (step + 1) / (num_warmup_steps + 1))


def cosine_factor(step: int, num_steps: int, warmup_share: float) -> float:
    """Rises over the warm-up, then falls to 0 along a cosine."""
    num_warmup_steps = int(num_steps * warmup_share)
    if step < num_warmup_steps:
        return (step + 1) / (num_warmup_steps + 1)
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))
