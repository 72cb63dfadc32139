"""The model that is trained, and how the engine comes to see what it learnt.

Invariant: full fine-tuning changes the very tensors that the engine reads. Low-rank adapters are added, at `publish`,
to a second copy of the base weights that the engine reads; always to the base as it was loaded, so that no rounding
adds up over the steps.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.embedded.weights import load_model
from rstar2.errors import UserError
from rstar2.train.packed import use_packed_attention


@dataclass(frozen=True, slots=True)
class Policy:
    network: Any
    """The causal language model that the trainer runs, with adapters where it has some."""
    served: Any
    """The model whose tensors the engine reads: `network` itself, or its copy with the adapters added."""
    device: torch.device
    _publish: Callable[[], None] = field(default=lambda: None)

    def parameters(self) -> list[Tensor]:
        """Those that are trained."""
        return [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def publish(self) -> None:
        """Make what was learnt visible to the engine, which must stand still."""
        with torch.no_grad():
            self._publish()

    def learnt_state(self) -> dict[str, Tensor]:
        """All that training changes, by name."""
        return {
            name: parameter.detach() for name, parameter in self.network.named_parameters() if parameter.requires_grad
        }

    def load_learnt_state(self, state: dict[str, Tensor]) -> None:
        mine = self.learnt_state()
        if mine.keys() != state.keys():
            raise UserError("the checkpoint is of another model: its parameters have other names")
        with torch.no_grad():
            for name, parameter in mine.items():
                if parameter.shape != state[name].shape:
                    raise UserError(f"the checkpoint is of another model: {name} has another shape")
                parameter.copy_(state[name])
        self.publish()

    def frozen_copy(self, state: Mapping[str, Tensor]) -> Any:
        """The network as it was when its learnt state was this."""
        reference = copy.deepcopy(self.network)
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                if name in state:
                    parameter.copy_(state[name])
        reference.requires_grad_(False)
        reference.eval()
        return reference


def load_policy(folder: Path, recipe: Recipe) -> Policy:
    device = choose_device(recipe.model.device)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    dtype = dtypes.get(recipe.model.dtype) or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    network = load_model(folder, device, dtype)
    context_tokens = network.config.max_position_embeddings
    if recipe.model.context_tokens > context_tokens:
        raise UserError(
            f"model.context_tokens is {recipe.model.context_tokens}, but {recipe.model.name} was made for "
            f"{context_tokens}: lower it"
        )
    served, publish = network, lambda: None
    if recipe.model.lora is not None:
        served = copy.deepcopy(network)
        served.requires_grad_(False)
        network, publish = _with_adapters(network, served, recipe)
    use_packed_attention(network)
    if recipe.train.gradient_checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
        network.train()
    return Policy(network, served, device, publish)


def _with_adapters(network: Any, served: Any, recipe: Recipe) -> tuple[Any, Callable[[], None]]:
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    lora = recipe.model.lora
    assert lora is not None
    known = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    if missing := [name for name in lora.target_modules if name not in known]:
        raise UserError(f"model.lora.target_modules names {missing[0]!r}, which {recipe.model.name} does not have")
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft itself divides it by the rank, as a float
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        adapted = get_peft_model(network, settings).get_base_model()
    served_modules = dict(served.named_modules())
    pairs: list[tuple[Any, Any]] = [
        (module, served_modules[name]) for name, module in adapted.named_modules() if isinstance(module, LoraLayer)
    ]

    def publish() -> None:
        for module, target in pairs:
            delta = module.get_delta_weight("default")
            target.weight.copy_((module.get_base_layer().weight.float() + delta.float()).to(target.weight.dtype))

    return adapted, publish
