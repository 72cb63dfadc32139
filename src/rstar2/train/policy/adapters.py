"""Low-rank adapters beside the linear layers of a model (peft), the only weights that are then trained.

Invariant: an adapter's initial weights are a function of the recipe's seed and of its name, so they are the same
however many ranks they are sharded over.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rstar2.config import Recipe
from rstar2.errors import UserError
from rstar2.train.seeds import named_seed


def add_adapters(network: Any, recipe: Recipe) -> Any:
    """Adds the recipe's adapters to the network, whose output they do not change yet."""
    from peft import get_peft_model

    assert recipe.model.lora is not None
    known = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    if missing := [name for name in recipe.model.lora.target_modules if name not in known]:
        raise UserError(f"model.lora.target_modules names {missing[0]!r}, which {recipe.model.name} does not have")
    settings = adapter_settings(recipe)
    settings.base_model_name_or_path = None  # peft would warn that the model's folder has another name
    with torch.random.fork_rng(devices=[]):
        adapted = get_peft_model(network, settings).get_base_model()
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad and not parameter.is_meta:
            with torch.no_grad():
                parameter.copy_(first_adapter(name, parameter.shape, recipe.seed))
    return adapted


def adapter_settings(recipe: Recipe) -> Any:
    """The recipe's adapters as a peft config."""
    from peft import LoraConfig

    lora = recipe.model.lora
    assert lora is not None
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft itself divides it by the rank, as a float
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
        base_model_name_or_path=recipe.model.name,
    )


def first_adapter(name: str, shape: torch.Size, seed: int) -> Tensor:
    """The initial weights of one adapter matrix: random for `lora_A`, as peft draws them, and 0 for `lora_B`."""
    matrix = torch.zeros(shape)
    if ".lora_A." in name:
        generator = torch.Generator().manual_seed(named_seed(seed, "adapter", name))
        torch.nn.init.kaiming_uniform_(matrix, a=math.sqrt(5), generator=generator)
    return matrix
