"""The model that is trained, and the sync of its weights to the engine.

Invariant: full fine-tuning changes the very tensors that an engine in this process reads. Low-rank adapters are merged
into a second copy of the base weights, always from the base as it was loaded, so that rounding does not add up over the
steps. The engine reads that copy or, if it samples during learning, a third one, which `publish` updates. A network
that is sharded over ranks is read by no engine: they get its `served_state`.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.engine.embedded.weights import load_model
from rstar2.errors import UserError
from rstar2.train.learning.forward import Pack, token_log_probs, use_packed_attention
from rstar2.train.policy.adapters import adapter_settings, add_adapters
from rstar2.train.policy.merged_lora import MergedModel
from rstar2.train.policy.served_weights import served_state

Forward = Callable[..., tuple[Tensor, Tensor]]
"""Takes the network, a pack and the temperature (by name); returns the targets' log-probabilities and entropies."""


@dataclass(frozen=True, slots=True)
class Policy:
    network: Any
    """The causal language model that the trainer runs, with adapters where it has some."""
    served: Any
    """The model whose tensors the engine reads: `network` itself, or its copy with the adapters added. None where the
    network is sharded."""
    device: torch.device
    """The device on which the trainer computes."""
    dtype: torch.dtype
    """The dtype that the trainer computes in, and that engines get."""
    adapters: Any = None
    """The peft config of the adapters; None if all weights are trained."""
    shares_prefixes: bool = False
    """Whether the common prefix of sequences in a pack is computed once."""
    _forward: Forward = field(default=token_log_probs)
    _publish: Callable[[], None] = field(default=lambda: None)
    _settle: Callable[[], None] = field(default=lambda: None)

    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters, by name."""
        return {name: parameter for name, parameter in self.network.named_parameters() if parameter.requires_grad}

    def token_log_probs(self, pack: Pack, *, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Each target's log-probability, with gradient, and the entropy of its distribution, without."""
        return self._forward(self.network, pack, temperature=temperature)

    def publish(self) -> None:
        """Sync what was learnt to the engine, which must be paused."""
        with torch.no_grad():
            self._publish()

    def settle(self) -> None:
        """Release the shards that a pass without gradient may have gathered, before the parameters change."""
        self._settle()

    def served_state(self) -> Iterator[tuple[str, Tensor]]:
        """The weights that engines serve: full tensors under the checkpoint's names. All ranks must iterate over all of
        them."""
        return served_state(self.network, self.dtype)


def load_policy(folder: Path, recipe: Recipe) -> Policy:
    """Loads the whole model into this process, as a policy."""
    device = choose_device(recipe.model.device)
    dtype = compute_dtype(recipe, device)
    network = load_model(folder, device, dtype)
    require_context(network.config, recipe)
    return make_policy(network, recipe, device, dtype)


def make_policy(network: Any, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> Policy:
    """The policy of a loaded model."""
    if recipe.model.lora is not None:
        return _adapted_policy(network, recipe, device, dtype)
    if device.type == "cuda" and dtype is torch.bfloat16:
        return Policy(network, network, device, dtype, shares_prefixes=True, _forward=_on_cuda(network, recipe))
    use_packed_attention(network)
    use_gradient_checkpointing(network, recipe)
    return Policy(network, network, device, dtype)


def _adapted_policy(base: Any, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> Policy:
    lora = recipe.model.lora
    assert lora is not None
    merged = MergedModel(base, lora.target_modules)
    # The engine must not see new weights while it samples.
    served = copy.deepcopy(merged.model) if recipe.train.max_staleness else merged.model
    network = add_adapters(base, recipe)
    is_on_cuda = device.type == "cuda" and dtype is torch.bfloat16 and not lora.dropout
    if is_on_cuda:
        forward = _on_cuda(merged.model, recipe, merged, network)
    else:
        merged.adapt_each(network)
        # Adapters with dropout cannot be merged: they learn beside their layers, as in peft.
        forward = _merged_forward(merged) if not lora.dropout else token_log_probs
        runs = network if lora.dropout else merged.model
        use_packed_attention(runs)
        use_gradient_checkpointing(runs, recipe)
    return Policy(
        network,
        served,
        device,
        dtype,
        adapter_settings(recipe),
        shares_prefixes=is_on_cuda,
        _forward=forward,
        _publish=_publisher(merged, served),
    )


def _merged_forward(merged: MergedModel) -> Forward:
    def forward(_network: Any, pack: Pack, *, temperature: float) -> tuple[Tensor, Tensor]:
        merged.merge()
        return token_log_probs(merged.model, pack, temperature=temperature)

    return forward


def _on_cuda(model: Any, recipe: Recipe, merged: MergedModel | None = None, adapted: Any = None) -> Forward:
    from rstar2.train.cuda.network import CudaNetwork

    ours = CudaNetwork(
        model,
        merged=merged,
        adapted=adapted,
        is_checkpointed=is_checkpointed(recipe),
        batch_invariant=recipe.engine.batch_invariant,
    )
    return lambda _network, pack, *, temperature: ours.token_log_probs(pack, temperature=temperature)


def _publisher(merged: MergedModel, served: Any) -> Callable[[], None]:
    pairs = list(zip(merged.model.parameters(), served.parameters(), strict=True))

    def publish() -> None:
        merged.merge()
        for learnt, weight in pairs:
            if weight.data_ptr() != learnt.data_ptr():
                weight.copy_(learnt)

    return publish


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


def is_checkpointed(recipe: Recipe) -> bool:
    """Whether activations are recomputed in the backward pass. They are, unless the recipe or the division of a GPU's
    memory says otherwise."""
    return recipe.train.gradient_checkpointing is not False


def use_gradient_checkpointing(network: Any, recipe: Recipe) -> None:
    if is_checkpointed(recipe):
        network.gradient_checkpointing_enable({"use_reentrant": False})
        network.train()
