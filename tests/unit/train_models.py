"""A policy small enough for a unit test, and rollouts and conversations for it to learn from."""

from pathlib import Path
from typing import Any

import torch

from rstar2.agent import ChatFormat, HfTokenizer
from rstar2.config import Recipe
from rstar2.data.procedural import conversations
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.train.learning.forward import Pack
from rstar2.train.learning.sft_examples import conversation_texts
from rstar2.train.learning.update import Rollout
from rstar2.train.policy.policy import Policy, load_policy

SIZES = TinySizes(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=400, context_tokens=256)
CONVERSATIONS = conversations("tool_format", 12, "unit")


def build_model(folder: Path, architecture: str = "llama") -> Path:
    build_tiny(folder, architecture, SIZES, conversation_texts(CONVERSATIONS), seed=3)
    return folder


def make_policy(
    folder: Path,
    *,
    dtype: str = "float32",
    lora: dict[str, Any] | None = None,
    algo: dict[str, Any] | None = None,
    **train: Any,
) -> Policy:
    model = {"name": str(folder), "device": "cpu", "dtype": dtype, "context_tokens": SIZES.context_tokens}
    recipe = Recipe.model_validate(
        {
            "name": "unit",
            "model": model | ({} if lora is None else {"lora": lora}),
            "algo": algo or {},
            "train": {"gradient_checkpointing": False} | train,
        }
    )
    return load_policy(folder, recipe)


def make_chat(folder: Path, system_text: str = "") -> ChatFormat:
    return ChatFormat.of(HfTokenizer.load(folder), system_text)


def make_rollouts(policy: Policy, num_rollouts: int, seed: int = 0) -> list[Rollout]:
    """Prompts and responses of random tokens, some of them not sampled; the engine agrees with the policy."""
    generator = torch.Generator().manual_seed(seed)
    rollouts = []
    for number in range(num_rollouts):
        length = 6 + int(torch.randint(14, (), generator=generator))
        ids = tuple(torch.randint(SIZES.vocab_size - 50, (length,), generator=generator).tolist())
        mask = (False, False, *(place % 5 != 0 for place in range(length - 2)))
        with torch.no_grad():
            log_probs, _ = policy.token_log_probs(Pack.of([ids], [mask], policy.device))
        rollouts.append(Rollout(ids, mask, tuple(log_probs.tolist()), 1.0 if number % 2 else -0.7))
    return rollouts
