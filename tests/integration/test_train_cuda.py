"""The update's own kernels on a GPU give what PyTorch's operations give, and their gradients."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rstar2.config import Recipe
from rstar2.engine import Sampling
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.train.learning.forward import Family, Pack
from rstar2.train.memory.activations import GpuActivations
from rstar2.train.memory.sizes import ModelSizes
from rstar2.train.policy.policy import Policy, make_policy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 4096, 49_152, 151_936])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_entropies_and_gradients(dtype: torch.dtype, vocab_size: int, temperature: float) -> None:
    from rstar2.train.cuda.operations import LogProbs

    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(65, vocab_size, device="cuda", generator=generator) * 8
    logits[3] = 0  # all alike
    logits[4, 1:] = -1e4  # one that is certain
    logits = logits.to(dtype)
    targets = torch.randint(vocab_size, (65,), device="cuda", generator=generator)
    weights = torch.randn(65, device="cuda", generator=generator)

    def gradient(log_probs: Tensor, of: Tensor) -> Tensor:
        (found,) = torch.autograd.grad((log_probs * weights).sum(), of)
        return found

    plain = logits.clone().requires_grad_()
    all_log_probs = (plain.float() / temperature).log_softmax(-1)
    expected = all_log_probs.gather(-1, targets[:, None])[:, 0]
    expected_entropies = torch.special.entr(all_log_probs.exp()).sum(-1)
    ours = logits.clone().requires_grad_()
    log_probs, entropies = LogProbs.apply(ours, targets, temperature)
    torch.testing.assert_close(log_probs, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(entropies, expected_entropies, rtol=1e-4, atol=1e-4)
    assert not entropies.requires_grad
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 1e-4}
    torch.testing.assert_close(gradient(log_probs, ours), gradient(expected, plain), **tolerance)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def assert_near(found: Tensor, exact: Tensor, share: float = 0.01) -> None:
    """Within bfloat16's rounding of what float64 gives, measured as a whole: single elements may cancel out."""
    error = (found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-12)
    assert error < share, float(error)


@pytest.mark.parametrize("width", [64, 576, 1536, 3584])
@pytest.mark.parametrize("has_residual", [False, True])
def test_add_norm(width: int, has_residual: bool) -> None:
    from rstar2.train.cuda.operations import AddNorm

    eps, num_tokens = 1e-5, 2111
    hidden, residual, weight = randn(num_tokens, width), randn(num_tokens, width, seed=1), 1 + randn(width, seed=2) / 4
    into_normed, into_total = randn(num_tokens, width, seed=3), randn(num_tokens, width, seed=4)
    inputs = [tensor.requires_grad_() for tensor in ((hidden, residual, weight) if has_residual else (hidden, weight))]
    normed, total = AddNorm.apply(hidden, residual if has_residual else None, weight, eps)
    found = torch.autograd.grad((normed * into_normed).sum() + (total * into_total).sum(), inputs)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    exact_total = exact[0] + exact[1] if has_residual else exact[0]
    exact_normed = exact_total * torch.rsqrt(exact_total.square().mean(-1, keepdim=True) + eps) * exact[-1]
    assert_near(normed, exact_normed)
    assert_near(total, exact_total)
    wanted = torch.autograd.grad((exact_normed * into_normed).sum() + (exact_total * into_total).sum(), exact)
    for got, want in zip(found, wanted, strict=True):
        assert_near(got, want)


def test_gate() -> None:
    from rstar2.train.cuda.operations import Gate

    gate_up, into = randn(513, 2 * 1300).requires_grad_(), randn(513, 1300, seed=1)
    gated = Gate.apply(gate_up)
    exact = gate_up.detach().double().requires_grad_()
    gate, up = exact.chunk(2, dim=1)
    exact_gated = torch.nn.functional.silu(gate) * up
    assert_near(gated, exact_gated)
    (found,), (wanted,) = (
        torch.autograd.grad(gated, gate_up, into),
        torch.autograd.grad(exact_gated, exact, into.double()),
    )
    assert_near(found, wanted)


MODELS = {
    "llama": {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_size": 576},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 512},
    "qwen3": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 192},
}


def make_model(kind: str, dtype: torch.dtype, device: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 999, "intermediate_size": 640, "num_hidden_layers": 3, "max_position_embeddings": 512}
    config = AutoConfig.for_model(kind, **sizes, **MODELS[kind], tie_word_embeddings=True)
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 4)
            elif "bias" in name:
                parameter.add_(torch.randn_like(parameter) / 10)
            elif "layers" in name:
                parameter.mul_(2)  # fresh weights attend to everything alike, and would hide a mask that is wrong
    return model.to(torch.bfloat16).to(dtype).to(device).eval()


def make_policy_of(
    model: Any,
    dtype: str,
    device: str,
    lora: dict[str, Any] | None = None,
    batch_invariant: bool = False,
    **train: Any,
) -> Policy:
    settings = {"name": "any", "device": device, "dtype": dtype, "context_tokens": 512}
    recipe = Recipe.model_validate(
        {
            "name": "cuda",
            "engine": {"batch_invariant": batch_invariant},
            "model": settings | ({} if lora is None else {"lora": lora}),
            "train": {"gradient_checkpointing": False} | train,
        }
    )
    return make_policy(model, recipe, torch.device(device), getattr(torch, dtype))


def make_families() -> list[Family]:
    generator = torch.Generator().manual_seed(3)

    def draw(number: int) -> list[int]:
        return torch.randint(999, (number,), generator=generator).tolist()

    families = []
    for num_shared, lengths in ((70, (5, 130, 1)), (1, (40, 64)), (200, (3, 129)), (0, (33,)), (0, (1,))):
        prefix = draw(num_shared) if num_shared else draw(4)
        sequences = [prefix + draw(length) for length in lengths]
        masks = [[False] * len(prefix) + [True] * length for length in lengths]
        families.append(Family(sequences, masks, num_shared))
    return families


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16.0}])
@pytest.mark.parametrize(("is_checkpointed", "batch_invariant"), [(False, False), (True, False), (False, True)])
def test_log_probs_and_gradients_of_a_model(
    kind: str, lora: dict[str, Any] | None, is_checkpointed: bool, batch_invariant: bool
) -> None:
    """Ours, with shared prefixes, in bfloat16; `transformers` in float32 on a CPU, and in bfloat16 for what rounding
    alone does."""
    families = make_families()

    def found(device: str, dtype: str, *, is_ours: bool) -> tuple[Tensor, dict[str, Tensor]]:
        policy = make_policy_of(
            make_model(kind, getattr(torch, dtype), device),
            dtype,
            device,
            lora,
            batch_invariant and is_ours,
            gradient_checkpointing=is_checkpointed,
        )
        assert policy.shares_prefixes == is_ours
        if lora is not None:
            with torch.no_grad():
                for name, parameter in policy.parameters().items():
                    generator = torch.Generator().manual_seed(len(name))
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / 30)
        alone = [Family([ids], [m]) for f in families for ids, m in zip(f.sequences, f.masks, strict=True)]
        pack = Pack.of_families(families if is_ours else alone, policy.device)
        log_probs, _ = policy.token_log_probs(pack)
        weights = torch.linspace(-1, 2, len(log_probs), device=policy.device)
        parameters = policy.parameters()
        gradients = torch.autograd.grad((log_probs * weights).sum(), list(parameters.values()))
        return log_probs.detach().cpu(), {
            name: gradient.cpu() for name, gradient in zip(parameters, gradients, strict=True)
        }

    exact, exact_gradients = found("cpu", "float32", is_ours=False)
    rounded, rounded_gradients = found("cpu", "bfloat16", is_ours=False)
    ours, gradients = found("cuda", "bfloat16", is_ours=True)
    assert (ours - exact).norm() < 1.5 * (rounded - exact).norm()
    for name, gradient in gradients.items():
        wanted = exact_gradients[name].double()
        error, rounding = (
            float((got.double() - wanted).norm() / wanted.norm()) for got in (gradient, rounded_gradients[name])
        )
        assert error < max(1.5 * rounding, 0.02), (name, error, rounding)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16.0}])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_an_update_takes_the_memory_that_is_planned_for_it(
    kind: str, lora: dict[str, Any] | None, is_checkpointed: bool
) -> None:
    model = make_model(kind, torch.bfloat16, "cuda")
    policy = make_policy_of(model, "bfloat16", "cuda", lora, gradient_checkpointing=is_checkpointed)
    sizes = ModelSizes.of(model.config)
    num_tokens = 60_000
    lengths = [num_tokens // 200] * 200
    pack = Pack.of([[1] * length for length in lengths], [[False] + [True] * (length - 1) for length in lengths],
                   policy.device)  # fmt: skip
    policy.token_log_probs(pack)[0].sum().backward()  # compiles kernels, and makes libraries ready
    policy.network.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    log_probs, _ = policy.token_log_probs(pack)
    log_probs.sum().backward()
    found_bytes = torch.cuda.max_memory_allocated() - before_bytes
    planned = GpuActivations(sizes, 2, is_checkpointed=is_checkpointed, is_full=lora is None).measure(num_tokens)
    num_trained = sum(parameter.nbytes for parameter in policy.parameters().values())
    assert found_bytes - num_trained <= 1.02 * planned.total <= 1.15 * found_bytes


@pytest.mark.parametrize("num_outputs", [17, 960, 2048])
@pytest.mark.parametrize("num_inputs", [64, 200, 1536])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_batch_invariant_product(num_outputs: int, num_inputs: int, has_bias: bool) -> None:
    from rstar2.engine.embedded.invariant import linear

    x, weight = randn(777, num_inputs), randn(num_outputs, num_inputs, seed=1)
    bias = randn(num_outputs, seed=2) if has_bias else None
    found = linear(x, weight, bias)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert_near(found, exact)
    for rows in (slice(0, 1), slice(5, 8), slice(300, 700)):
        assert torch.equal(linear(x[rows], weight, bias), found[rows])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("lora", [None, {"rank": 8, "alpha": 16.0}])
def test_a_batch_invariant_trainer_computes_the_log_probs_of_its_engine_to_the_bit(
    kind: str, lora: dict[str, Any] | None
) -> None:
    policy = make_policy_of(make_model(kind, torch.bfloat16, "cuda"), "bfloat16", "cuda", lora, True)
    if lora is not None:
        with torch.no_grad():
            for parameter in policy.parameters().values():
                parameter.add_(torch.randn_like(parameter) / 30)
        policy.publish()
    options = EmbeddedOptions(kv_cache_tokens=65536, max_prefill_tokens=100, batch_invariant=True)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(999, (length,), generator=generator).tolist() for length in (3, 70, 150, 200)]

    async def sample(engine: EmbeddedEngine, number: int) -> tuple[list[int], list[float]]:
        sampling = Sampling(temperature=0.8, seed=number)
        chunks = [chunk async for chunk in engine.generate(str(number), prompts[number % 4], sampling, 30 + number)]
        return [i for chunk in chunks for i in chunk.token_ids], [p for chunk in chunks for p in chunk.log_probs]

    async def sample_all(at_a_time: int) -> list[tuple[list[int], list[float]]]:
        engine = EmbeddedEngine.on_model(policy.served, replace(options, max_running=at_a_time))
        try:
            return await asyncio.gather(*(sample(engine, number) for number in range(48)))
        finally:
            await engine.close()

    turns = asyncio.run(sample_all(64))
    assert asyncio.run(sample_all(3)) == turns, "a turn depends on what runs beside it"
    families = []
    for first, prompt in enumerate(prompts):
        answers = [turns[number][0] for number in range(first, 48, 4)]
        masks = [[False] * len(prompt) + [True] * len(answer) for answer in answers]
        families.append(Family([prompt + answer for answer in answers], masks, len(prompt)))
    with torch.no_grad():
        found, _ = policy.token_log_probs(Pack.of_families(families, policy.device), temperature=0.8)
    sampled = [log_prob for first in range(4) for number in range(first, 48, 4) for log_prob in turns[number][1]]
    assert found.double().tolist() == sampled
