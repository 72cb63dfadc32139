"""The trained model as a Hugging Face folder; and what adapters learnt, as a small folder of its own."""

from pathlib import Path
from typing import Any

import torch

from rstar2.train.policy import Policy
from rstar2.train.served import ADAPTER
from rstar2.train.whole import whole

ADAPTER_FOLDER = "adapter"
"""Inside the model's."""


def write_model(folder: Path, policy: Policy, *, is_writer: bool = True) -> None:
    """Every rank calls it; the one that writes puts the whole model together in host memory."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    state = {}
    for name, tensor in policy.served_state():
        if is_writer:
            state[name] = tensor.cpu()
    if not is_writer:
        return
    with torch.device("meta"):
        make: Any = AutoModelForCausalLM.from_config
        model = make(policy.network.config, dtype=policy.dtype)
    model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    assert not any(parameter.is_meta for parameter in model.parameters()), "the network does not fill its own model"
    model.save_pretrained(folder)


def write_adapter(folder: Path, policy: Policy, *, is_writer: bool = True) -> None:
    """As peft reads it, in the precision that engines compute with. Every rank calls it."""
    from safetensors.torch import save_file

    state = {}
    for name, parameter in policy.parameters().items():
        tensor = whole(parameter.detach().to(policy.dtype))
        if is_writer:
            state[f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"] = tensor.cpu().contiguous()
    if is_writer:
        policy.adapters.save_pretrained(folder)
        save_file(state, folder / "adapter_model.safetensors")
