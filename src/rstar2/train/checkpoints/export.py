"""Writes the trained model as a Hugging Face folder, and trained adapters as a separate, small folder."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from rstar2.agent import ChatFormat, write_format
from rstar2.config import EnvironmentSection
from rstar2.models.card import CARD_NAME
from rstar2.train.checkpoints.checkpoint import write_errors
from rstar2.train.policy.policy import Policy
from rstar2.train.policy.served_weights import ADAPTER
from rstar2.train.sharding.ranks import full_tensor

ADAPTER_FOLDER = "adapter"
"""The folder of the adapters, inside the model's folder."""


@contextmanager
def agent_folder(target: Path, source: Path, chat: ChatFormat, environment: EnvironmentSection) -> Iterator[Path]:
    """A folder to write weights into, which becomes `target` when it is complete. It gets the other files of the model
    that was trained, and the format that an agent needs to use it. After an exception `target` is unchanged."""
    unfinished = target.with_name(f".{target.name}")
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            yield unfinished
            _copy_all_but_weights(source, unfinished)
            for folder in (unfinished, unfinished / ADAPTER_FOLDER):
                if folder.is_dir():
                    write_format(folder, chat, environment)
            shutil.rmtree(target, ignore_errors=True)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _copy_all_but_weights(source: Path, target: Path) -> None:
    for file in source.iterdir():
        is_described = file.suffix != ".safetensors" and file.name != CARD_NAME
        if is_described and file.is_file() and not (target / file.name).exists():
            shutil.copy(file, target / file.name)


def write_model(folder: Path, policy: Policy, *, is_writer: bool = True) -> None:
    """Write the served model. Every rank must call it; the one that writes gathers the full model in host memory."""
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
    """Write the adapter as peft reads it, in the precision of the engines. Every rank must call it."""
    from safetensors.torch import save_file

    state = {}
    for name, parameter in policy.parameters().items():
        tensor = full_tensor(parameter.detach().to(policy.dtype))
        if is_writer:
            state[f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}"] = tensor.cpu().contiguous()
    if is_writer:
        policy.adapters.save_pretrained(folder)
        save_file(state, folder / "adapter_model.safetensors")
