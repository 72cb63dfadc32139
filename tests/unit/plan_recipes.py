"""Recipes that a plan is made for in a moment: a tiny model, on one process or on many pretended ranks."""

from typing import Any

from rstar2.config import Recipe
from rstar2.plan.devices import find_device
from rstar2.plan.layout import Layout, find_layout
from rstar2.plan.meta_model import ModelPlan
from rstar2.plan.model_config import find_config

TINY = {"num_layers": 3, "hidden_size": 40, "num_heads": 5, "num_kv_heads": 1, "vocab_size": 301}
"""Sizes that few numbers of ranks divide."""


def make_recipe(**sections: Any) -> Recipe:
    raw: dict[str, Any] = {
        "name": "planned",
        "model": {"name": "tiny:qwen3", "context_tokens": 1024, "tiny": TINY},
        "agent": {"max_tool_output_tokens": 32},
        "rollout": {"max_prompt_tokens": 64},
        "train": {"micro_batch_tokens": 1024, "prompts_per_step": 4},
        "algo": {"group_size": 4},
        "stages": [{"name": "only", "data": ["train"], "max_response_tokens": 192, "steps": 3}],
        "data": {"train": {"source": "procedural:gcd", "num_problems": 50}},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section} if isinstance(section, dict) else section
    return Recipe.model_validate(raw)


def make_model(recipe: Recipe, *, is_on_gpu: bool = False) -> ModelPlan:
    return ModelPlan.of(recipe, find_config(recipe).values, is_on_gpu=is_on_gpu)


def make_layout(recipe: Recipe, device: str = "mi300x") -> Layout:
    return find_layout(recipe, find_device(device))
