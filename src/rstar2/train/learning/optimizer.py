"""AdamW on float32 weights, whatever the model's own dtype is.

A learning rate of 1e-6 moves a bfloat16 weight by less than its last bit, so such weights are updated in float32 copies
and rounded back into place; the model's tensors stay where they are, and engines that share them see the new values.
Gradients of micro-batches are summed in float32 too: a bfloat16 sum of many would lose what each of them adds.

Parameters may be sharded over ranks. The norm is that of the full gradient, so all ranks alike clip it, or skip it if
it is not finite.
"""

import math
from collections.abc import Container, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from rstar2.train.sharding.ranks import full_tensor

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The names that AdamW itself uses."""


def weight_key(name: str) -> str:
    """The name under which a checkpoint holds a parameter, as in `torch.distributed.checkpoint.state_dict`."""
    return f"model.{name}"


def moment_key(name: str, moment: str) -> str:
    return f"optim.state.{name}.{moment}"


class Optimizer:
    def __init__(self, parameters: Mapping[str, Tensor], weight_decay: float) -> None:
        self._parameters = dict(parameters)
        self._weight_decay = weight_decay
        self._masters = {
            name: parameter if parameter.dtype is torch.float32 else parameter.detach().float().clone()
            for name, parameter in self._parameters.items()
        }
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                hook = partial(self._accumulate, name)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._adam = self._fresh()

    def _accumulate(self, name: str, _parameter: Tensor | None = None) -> None:
        """Add a parameter's gradient from one micro-batch to that of its float32 copy, and clear it."""
        parameter, master = self._parameters[name], self._masters[name]
        if parameter.grad is None:
            return
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    def _fresh(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(list(self._masters.values()), lr=0.0, weight_decay=self._weight_decay)

    def reset(self) -> None:
        """Forget every moment; the weights stay."""
        self._adam = self._fresh()

    def step(self, lr: float, max_grad_norm: float) -> float:
        """Updates the weights from the summed gradients, and clears these. Returns their norm before clipping."""
        for name, master in self._masters.items():
            if master is not self._parameters[name]:
                self._accumulate(name)
        masters = list(self._masters.values())
        total_norm = full_tensor(get_total_norm([master.grad for master in masters if master.grad is not None]))
        clip_grads_with_norm_(masters, max_grad_norm, total_norm)
        norm = float(total_norm)
        if math.isfinite(norm):
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self._write_back()
        self._adam.zero_grad(set_to_none=True)
        return norm

    def _write_back(self) -> None:
        with torch.no_grad():
            for name, master in self._masters.items():
                if master is not self._parameters[name]:
                    self._parameters[name].copy_(master)

    def state_dict(self) -> dict[str, Tensor]:
        """Weights and moments by the names that a checkpoint has for them: the tensors themselves, not copies."""
        state = {weight_key(name): master.detach() for name, master in self._masters.items()}
        for name, master in self._masters.items():
            for moment, value in self._adam.state.get(master, {}).items():
                state[moment_key(name, moment)] = value
        return state

    def room_for(self, stored: Container[str]) -> dict[str, Tensor]:
        """The tensors into which a state with these names is read: the weights in place, and moments if it has some."""
        room = {weight_key(name): master.detach() for name, master in self._masters.items()}
        for name, master in self._masters.items():
            for moment in MOMENTS:
                if (key := moment_key(name, moment)) in stored:
                    room[key] = torch.zeros(()) if moment == "step" else torch.zeros_like(master)
        return room

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.reset()
        for name, master in self._masters.items():
            with torch.no_grad():
                master.copy_(state[weight_key(name)])
            keys = {moment: moment_key(name, moment) for moment in MOMENTS}
            if all(key in state for key in keys.values()):
                self._adam.state[master] = {moment: state[key] for moment, key in keys.items()}
        self._write_back()


def warmup_factor(step: int, num_warmup_steps: int) -> float:
    """The factor of the learning rate at `step`, counted from 0: it rises over the warm-up and then stays at 1."""
    return min(1.0, (step + 1) / (num_warmup_steps + 1))


def cosine_factor(step: int, num_steps: int, warmup_share: float) -> float:
    """The factor of the learning rate at `step`: it rises over the warm-up, then falls to 0 along a cosine."""
    num_warmup_steps = int(num_steps * warmup_share)
    if step < num_warmup_steps:
        return (step + 1) / (num_warmup_steps + 1)
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))
