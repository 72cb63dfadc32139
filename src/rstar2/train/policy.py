"""The model that is trained, and how the engine comes to see what it learnt.

Invariant: full fine-tuning changes the very tensors that an engine in this process reads. Low-rank adapters are added,
at `publish`, to a second copy of the base weights that the engine reads; always to the base as it was loaded, so that
no rounding adds up over the steps. A network that is sharded over ranks is read by no engine: they get its
`served_state`.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.embedded.weights import load_model
from rstar2.errors import UserError
from rstar2.train.adapters import adapter_settings, add_adapters
from rstar2.train.merged import MergedAdapters
from rstar2.train.packed import Pack, token_log_probs, use_fused_norms, use_packed_attention
from rstar2.train.served import is_adapted, merged_weight, served_state


@dataclass(frozen=True, slots=True)
class Policy:
    network: Any
    """The causal language model that the trainer runs, with adapters where it has some."""
    served: Any
    """The model whose tensors the engine reads: `network` itself, or its copy with the adapters added. None where the
    network is sharded."""
    device: torch.device
    """Where it computes."""
    dtype: torch.dtype
    """What it computes with, and what engines get."""
    adapters: Any = None
    """Their settings, where it has some, in peft's words."""
    _forward: Callable[..., tuple[Tensor, Tensor]] = field(default=token_log_probs)
    _publish: Callable[[], None] = field(default=lambda: None)
    _settle: Callable[[], None] = field(default=lambda: None)

    def parameters(self) -> dict[str, Tensor]:
        """All that training changes, by name."""
        return {name: parameter for name, parameter in self.network.named_parameters() if parameter.requires_grad}

    def token_log_probs(self, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Of each target its log-probability, with gradient, and the entropy of its distribution, without."""
        return self._forward(self.network, pack, temperature=temperature)

    def publish(self) -> None:
        """Make what was learnt visible to the engine, which must stand still."""
        with torch.no_grad():
            self._publish()

    def settle(self) -> None:
        """Let go of what a pass without gradient may have gathered, before the parameters are changed."""
        self._settle()

    def served_state(self) -> Iterator[tuple[str, Tensor]]:
        """What engines serve: whole tensors under the names of the checkpoint. All ranks must go through all of it."""
        return served_state(self.network, self.dtype)


def load_policy(folder: Path, recipe: Recipe) -> Policy:
    """All of the model in this process."""
    device = choose_device(recipe.model.device)
    dtype = compute_dtype(recipe, device)
    network = load_model(folder, device, dtype)
    require_context(network.config, recipe)
    served, publish, adapters = network, lambda: None, None
    if recipe.model.lora is not None:
        served = copy.deepcopy(network)
        served.requires_grad_(False)
        network, adapters = add_adapters(network, recipe), adapter_settings(recipe)
        publish = _publisher(network, served)
    use_packed_attention(network)
    if device.type == "cuda":
        use_fused_norms(network)
    compute_again(network, recipe)
    return Policy(network, served, device, dtype, adapters, _publish=publish)


def compute_dtype(recipe: Recipe, device: torch.device) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return dtypes.get(recipe.model.dtype) or (torch.bfloat16 if device.type == "cuda" else torch.float32)


def require_context(config: Any, recipe: Recipe) -> None:
    """UserError if the model was made for shorter sequences than the recipe's."""
    if recipe.model.context_tokens > config.max_position_embeddings:
        raise UserError(
            f"model.context_tokens is {recipe.model.context_tokens}, but {recipe.model.name} was made for "
            f"{config.max_position_embeddings}: lower it"
        )


def compute_again(network: Any, recipe: Recipe) -> None:
    """Activations in the backward pass, where the recipe has it so."""
    if recipe.train.gradient_checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
        network.train()


def _publisher(network: Any, served: Any) -> Callable[[], None]:
    merged = MergedAdapters.in_passing(network)
    targets = {name: module.weight for name, module in served.named_modules() if isinstance(module, torch.nn.Linear)}
    if merged is not None:
        return partial(merged.publish, targets)
    pairs = [(module, targets[name]) for name, module in network.named_modules() if is_adapted(module)]

    def publish() -> None:
        for module, weight in pairs:
            weight.copy_(merged_weight(module, weight.dtype))

    return publish
