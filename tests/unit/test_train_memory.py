"""How a GPU is divided between trainer and engine: what is chosen, what is kept, and what is said if it cannot fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rstar2.config import Recipe
from rstar2.plan.model_config import BUNDLED
from rstar2.train.learning.work import TokenWork, attention_flop, product_flop
from rstar2.train.memory.division import Division, divide, longest_sequence
from rstar2.train.memory.need import GpuNeed
from rstar2.train.memory.sizes import ModelSizes

pytestmark = pytest.mark.unit

GIB = 1 << 30
LORA = {"rank": 16}
SMALL, MIDDLE, LARGE = (
    f"{name}-Instruct" for name in ("HuggingFaceTB/SmolLM2-135M", "Qwen/Qwen2.5-Coder-1.5B", "Qwen/Qwen2.5-Coder-7B")
)


def config_of(repo: str) -> Any:
    values = dict(BUNDLED[repo])
    return AutoConfig.for_model(values.pop("model_type"), **values)


def make_recipe(lora: dict[str, Any] | None = None, response: int = 1024, **sections: Any) -> Recipe:
    raw: dict[str, Any] = {
        "name": "divided",
        "model": {"name": "any", "device": "cuda", "context_tokens": 1024 + response},
        "agent": {"max_tool_output_tokens": 256},
        "rollout": {"max_prompt_tokens": 1024},
        "train": {"prompts_per_step": 64},
        "algo": {"group_size": 16},
        "stages": [{"name": "only", "data": ["train"], "max_response_tokens": response, "steps": 3}],
        "data": {"train": {"source": "procedural:gcd", "num_problems": 50}},
    }
    raw["model"] |= {} if lora is None else {"lora": lora}
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
    return Recipe.model_validate(raw)


def divided(recipe: Recipe, repo: str, gib: float, num_workers: int = 8) -> Division:
    need = GpuNeed.of(recipe, config_of(repo), 2)
    return divide(recipe, need, int(gib * GIB), int(gib * GIB), num_workers)


def peak_bytes(division: Division) -> int:
    """Of the two moments of a step in which most is taken, the higher."""
    cache, update = division.cache_bytes, division.update_bytes
    return division.need.fixed + (max(cache, update) if division.gives_cache_back else cache + update)


@pytest.mark.parametrize("gib", [10, 22.5, 45, 78, 135])
@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("repo", [SMALL, MIDDLE, LARGE])
@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("response", [512, 12_288])
def test_a_division_fits_or_says_why_not(
    gib: float, lora: dict[str, Any] | None, repo: str, max_staleness: int, response: int
) -> None:
    if max_staleness and lora is None:
        return  # one machine samples ahead with adapters alone
    recipe = make_recipe(lora, response, train={"max_staleness": max_staleness}, algo={"tis_cap": 2.0})
    found = divided(recipe, repo, gib)
    if found.problem is not None:
        assert found.problem.startswith(("model.name: ", "stages.max_response_tokens: "))
        assert "; " in found.problem
        return
    assert peak_bytes(found) <= found.capacity_bytes
    assert found.micro_batch_tokens >= longest_sequence(recipe)
    assert found.kv_cache_tokens >= 8 * (1024 + response)
    assert not (found.gives_cache_back and max_staleness)
    assert found.trainer_bytes + found.need.engine_workspace <= found.capacity_bytes


def test_common_sizes_fit_at_the_defaults() -> None:
    """135M to 7B on a GPU of 141 GB, 1.5B with adapters on one of 24 GB."""
    for repo, lora in ((SMALL, None), (SMALL, LORA), (MIDDLE, None), (MIDDLE, LORA), (LARGE, LORA)):
        assert divided(make_recipe(lora), repo, 126).problem is None
    assert divided(make_recipe(LORA), MIDDLE, 21.5).problem is None


def test_the_cache_is_given_back_only_where_both_do_not_fit() -> None:
    recipe = make_recipe(LORA)
    assert not divided(recipe, MIDDLE, 200).gives_cache_back
    tight = divided(recipe, MIDDLE, 80)
    assert tight.gives_cache_back
    assert tight.cache_bytes + tight.update_bytes > tight.capacity_bytes - tight.need.fixed


def test_activations_are_recomputed_only_where_too_few_tokens_fit() -> None:
    recipe = make_recipe(LORA)
    roomy, tight = (divided(recipe, MIDDLE, gib) for gib in (135, 12))
    assert not roomy.is_checkpointed
    assert tight.is_checkpointed
    assert tight.problem is None
    assert tight.micro_batch_tokens >= longest_sequence(recipe)


def test_what_the_recipe_says_is_kept() -> None:
    given = {"micro_batch_tokens": 8192, "gradient_checkpointing": True}
    found = divided(make_recipe(LORA, train=given, engine={"kv_cache_tokens": 100_000}), MIDDLE, 135)
    assert (found.micro_batch_tokens, found.is_checkpointed, found.kv_cache_tokens) == (8192, True, 100_000)
    share = divided(make_recipe(LORA, engine={"gpu_memory_share": 0.1}), MIDDLE, 135)
    assert share.cache_bytes <= 0.1 * 135 * GIB


@pytest.mark.parametrize(
    ("sections", "gib", "said", "setting"),
    [
        (
            {"train": {"micro_batch_tokens": 65_536, "gradient_checkpointing": False}},
            60,
            "train.micro_batch_tokens: an update of 65536 tokens at a time takes ",
            ("train", "micro_batch_tokens", r" tokens fit, or leave it out"),
        ),
        (
            {"engine": {"kv_cache_tokens": 5_000_000}},
            60,
            "engine.kv_cache_tokens: 5000000 tokens take ",
            ("engine", "kv_cache_tokens", " tokens fit, or leave it out"),
        ),
    ],
)
def test_the_setting_that_would_fit_fits(
    sections: dict[str, Any], gib: float, said: str, setting: tuple[str, str, str]
) -> None:
    problem = divided(make_recipe(LORA, **sections), MIDDLE, gib).problem
    assert problem is not None and problem.startswith(said)
    section, field, after = setting
    fitting = int(problem.partition(after)[0].rpartition("; ")[2])
    changed = {section: sections[section] | {field: fitting}}
    assert divided(make_recipe(LORA, **changed), MIDDLE, gib).problem is None
    more = {section: sections[section] | {field: fitting + fitting // 20}}
    assert divided(make_recipe(LORA, **more), MIDDLE, gib).problem is not None


def test_responses_that_are_too_long_are_told_what_fits() -> None:
    problem = divided(make_recipe(LORA, 12_288), MIDDLE, 10.5).problem
    assert problem is not None and problem.startswith("stages.max_response_tokens: ")
    fitting = int(problem.partition(" tokens fit (stages")[0].rpartition(" of ")[2])
    assert divided(make_recipe(LORA, fitting), MIDDLE, 10.5, num_workers=1).problem is None


def test_a_model_that_is_too_large_is_told_of_adapters() -> None:
    problem = divided(make_recipe(), LARGE, 126).problem
    assert problem is not None and problem.startswith("model.name: ") and "[model.lora]" in problem
    assert divided(make_recipe(LORA), LARGE, 126).problem is None


def test_a_settled_recipe_has_what_was_chosen_and_nothing_else_new() -> None:
    recipe = make_recipe(LORA)
    found = divided(recipe, MIDDLE, 80)
    settled = found.settle(recipe)
    assert settled.train.micro_batch_tokens == found.micro_batch_tokens
    assert settled.train.gradient_checkpointing is found.is_checkpointed
    assert settled.engine.kv_cache_tokens == found.kv_cache_tokens
    left_open = {"micro_batch_tokens": None, "gradient_checkpointing": None}
    assert settled.train.model_copy(update=left_open) == recipe.train


@pytest.mark.parametrize("repo", sorted(BUNDLED))
def test_sizes_are_those_of_the_model_that_transformers_builds(repo: str) -> None:
    config = config_of(repo)
    sizes = ModelSizes.of(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    num_biases = sum(parameter.numel() for name, parameter in model.named_parameters() if name.endswith("bias"))
    num_qk_norms = sum(parameter.numel() for name, parameter in model.named_parameters() if "_norm.weight" in name)
    assert sum(parameter.numel() for parameter in model.parameters()) == sizes.num_params + num_biases + num_qk_norms
    for name, (num_in, num_out) in sizes.projections.items():
        (layer,) = (module for path, module in model.model.layers[0].named_modules() if path.endswith(name))
        assert layer.weight.shape == (num_out, num_in)


def test_the_work_of_a_family_is_that_of_its_tokens() -> None:
    """Counted token by token: each attends to all before it and to itself, and half of the last counts."""
    family = TokenWork.of_family([10, 7, 4], num_learnt=12, num_shared=3)
    assert (family.num_trained, family.num_computed, family.num_learnt) == (21, 3 + 7 + 4 + 1, 12)
    prompt = sum(place + 0.5 for place in range(3))
    own = sum(place + 0.5 for length in (10, 7, 4) for place in range(3, length))
    assert family.num_pairs == prompt + own
    alone = TokenWork.total([TokenWork.of_family([length], 4, 0) for length in (10, 7, 4)])
    assert alone.num_pairs == own + 3 * prompt
    sizes = ModelSizes.of(config_of(MIDDLE))
    assert product_flop(family, sizes, is_full=True) == 1.5 * product_flop(family, sizes, is_full=False)
    twice = replace(family, num_pairs=2 * family.num_pairs)
    assert attention_flop(twice, sizes) == 2 * attention_flop(family, sizes)
