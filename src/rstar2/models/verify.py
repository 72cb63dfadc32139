"""Checks that a model folder holds a model that works, before the folder is put in place.

Every weight file is opened and compared with the index; then, where memory allows, the model is loaded and must name
the capital of France, by plain continuation and, if it is a chat model, through its chat template.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rstar2.errors import InfrastructureError
from rstar2.models.card import Verification

PROMPT = "The capital of France is"
QUESTION = "What is the capital of France?"
EXPECTED = "Paris"
MAX_NEW_TOKENS = 12

MEMORY_HEADROOM = 1.25
"""Bytes of memory needed for each byte of weights: the weights themselves, activations and the loader's buffers."""

_PROBES = ("12 + 345 = 357", "x = {'é': [1.5, None]}\n\tif x:  # ½ ✓\n")


def verify_model(folder: Path, *, is_chat: bool) -> Verification:
    """Checks a model folder, and returns how far it could be checked; InfrastructureError if a check fails."""
    from transformers import AutoTokenizer

    _check_weight_files(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    _check_round_trip(tokenizer)
    weight_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    device = _device_with_room(int(weight_bytes * MEMORY_HEADROOM))
    if device is None:
        return Verification.FILES_ONLY
    _check_generation(folder, tokenizer, device, is_chat=is_chat)
    return Verification.GENERATED


def _check_weight_files(folder: Path) -> None:
    from safetensors import SafetensorError, safe_open

    found: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                found.update(file.keys())
        except SafetensorError as error:
            raise InfrastructureError(f"{path.name} is damaged: {error}") from error
    index = folder / "model.safetensors.index.json"
    wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"]) if index.is_file() else found
    if not found or not wanted <= found:
        raise InfrastructureError(f"{folder.name} lacks {len(wanted - found) or 'all'} of its tensors")


def _check_round_trip(tokenizer: Any) -> None:
    for text in _PROBES:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        decoded = tokenizer.decode(ids)
        if decoded != text:
            raise InfrastructureError(f"the tokenizer does not give back {text!r} but {decoded!r}")


def _device_with_room(num_bytes: int) -> str | None:
    import torch

    if torch.cuda.is_available() and torch.cuda.mem_get_info()[0] >= num_bytes:
        return "cuda"
    return "cpu" if available_memory_bytes() >= num_bytes else None


def available_memory_bytes() -> int:
    """The memory that can be allocated without swapping; all of the machine's if the system does not report it."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_generation(folder: Path, tokenizer: Any, device: str, *, is_chat: bool) -> None:
    from transformers import AutoModelForCausalLM

    with _no_loading_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    model.to(device)
    _expect(PROMPT, continue_text(model, tokenizer, PROMPT))
    if is_chat:
        _expect(QUESTION, answer_question(model, tokenizer, QUESTION))


def _expect(prompt: str, continuation: str) -> None:
    if EXPECTED not in continuation:
        raise InfrastructureError(
            f"the model does not work: it continued {prompt!r} with {continuation!r} and never said {EXPECTED!r}"
        )


def continue_text(model: Any, tokenizer: Any, text: str) -> str:
    """The model's greedy continuation of `text`."""
    return _generate(model, tokenizer, tokenizer(text, return_tensors="pt"))


def answer_question(model: Any, tokenizer: Any, question: str) -> str:
    """The model's greedy answer through its chat template, without thinking if it has the choice."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        enable_thinking=False,
        return_tensors="pt",
        return_dict=True,
    )
    return _generate(model, tokenizer, inputs)


def _generate(model: Any, tokenizer: Any, inputs: Any) -> str:
    inputs = inputs.to(model.device)
    # The sampling settings of the model's own generation_config have no effect here, and would cause a warning.
    sampling = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    output_ids = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, **sampling)
    text: str = tokenizer.decode(output_ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


@contextmanager
def _no_loading_bars() -> Iterator[None]:
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
