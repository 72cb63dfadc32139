"""Sequences packed end to end give what transformers gives for each of them alone: log-probabilities and gradients."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rstar2.train.learning import forward as packed
from rstar2.train.learning.forward import Family, Pack, token_log_probs, use_packed_attention
from rstar2.train.learning.packing import num_shared_tokens

pytestmark = [pytest.mark.property, pytest.mark.usefixtures("one_thread")]

VOCABULARY = 53
CPU = torch.device("cpu")
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}

SEQUENCE = st.lists(st.tuples(st.integers(0, VOCABULARY - 1), st.booleans()), min_size=2, max_size=12)
PACKS = st.lists(SEQUENCE, min_size=1, max_size=4)


@cache
def make_model(architecture: str, is_packed: bool) -> Any:
    make_config, make = MODELS[architecture]
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": True}
    torch.manual_seed(7)
    model = make(make_config(**sizes, **heads, max_position_embeddings=64)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # Fresh weights attend to everything alike, and would hide a mask that is wrong.
    if is_packed:
        use_packed_attention(model)
    return model


def split(rows: Sequence[Sequence[tuple[int, bool]]]) -> tuple[list[list[int]], list[list[bool]]]:
    """Ids and masks; the first token is predicted from nothing, and the last is always learnt."""
    ids = [[token for token, _ in row] for row in rows]
    masks = [[False, *(learnt for _, learnt in row[1:-1]), True] for row in rows]
    return ids, masks


def plain(
    model: Any, ids: list[list[int]], masks: list[list[bool]], temperature: float
) -> tuple[list[Tensor], list[Tensor]]:
    """What transformers itself says, one sequence at a time."""
    log_probs, entropies = [], []
    for sequence, mask in zip(ids, masks, strict=True):
        logits = model(torch.tensor([sequence]), use_cache=False).logits[0, :-1] / temperature
        places = torch.tensor(mask[1:])
        distribution = torch.distributions.Categorical(logits=logits[places])
        log_probs.append(distribution.log_prob(torch.tensor(sequence[1:])[places]))
        entropies.append(distribution.entropy())
    return log_probs, entropies


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("architecture", MODELS)
@settings(max_examples=12, deadline=None)
@given(rows=PACKS, temperature=st.sampled_from([1.0, 0.7]))
def test_packed_equals_plain(architecture: str, rows: list[list[tuple[int, bool]]], temperature: float) -> None:
    ids, masks = split(rows)
    reference, ours = make_model(architecture, is_packed=False), make_model(architecture, is_packed=True)
    expected, expected_entropies = plain(reference, ids, masks, temperature)
    found, entropies = token_log_probs(ours, Pack.of(ids, masks, CPU), temperature=temperature)
    torch.testing.assert_close(found.double(), torch.cat(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies.double(), torch.cat(expected_entropies).detach(), atol=1e-5, rtol=0)
    assert not entropies.requires_grad
    num_tokens = len(found)
    expected_gradients = gradients(reference, torch.cat(expected).sum() / num_tokens)
    for got, wanted in zip(gradients(ours, found.sum() / num_tokens), expected_gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6 * max(1.0, float(wanted.abs().max())), rtol=0)


@pytest.mark.parametrize("what", ["layers", "head"])
def test_computing_activations_again_changes_no_gradient(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("llama", is_packed=True)
    ids = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]]
    pack = Pack.of(ids, [[False] + [True] * (len(row) - 1) for row in ids], CPU)
    plain_gradients = gradients(model, token_log_probs(model, pack)[0].mean())
    num_calls = 0
    again = packed.plain_head if what == "head" else type(model.model.layers[0]).forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return again(*args, **kwargs)

    try:
        if what == "head":
            monkeypatch.setattr(packed, "HEAD_PIECE_TOKENS", 4)
            monkeypatch.setattr(packed, "plain_head", counted)
        else:
            monkeypatch.setattr(type(model.model.layers[0]), "forward", counted)
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
        found = gradients(model, token_log_probs(model, pack)[0].mean())
    finally:
        model.gradient_checkpointing_disable()
        model.eval()
    assert num_calls == {"head": 2 * 3, "layers": 2 * 2}[what], "it was computed again"
    for got, wanted in zip(found, plain_gradients, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)


FAMILIES = st.lists(
    st.tuples(st.lists(st.integers(0, VOCABULARY - 1), min_size=0, max_size=6), PACKS), min_size=1, max_size=3
)


@pytest.mark.parametrize("architecture", MODELS)
@settings(max_examples=12, deadline=None)
@given(families=FAMILIES)
def test_a_shared_prefix_changes_no_log_probability_and_no_gradient(
    architecture: str, families: list[tuple[list[int], list[list[tuple[int, bool]]]]]
) -> None:
    """Sequences that begin alike, in a pack that computes it once, and in one that computes it for each of them."""
    model = make_model(architecture, is_packed=True)
    sharing, all_ids, all_masks = [], [], []
    for prefix, rows in families:
        ids, masks = split([[(token, True) for token in prefix] + row for row in rows])
        sharing.append(Family(ids, masks, num_shared_tokens(ids)))
        assert sharing[-1].num_shared >= len(prefix) or len(rows) == 1
        all_ids, all_masks = all_ids + ids, all_masks + masks
    expected, expected_entropies = token_log_probs(model, Pack.of(all_ids, all_masks, CPU))
    pack = Pack.of_families(sharing, CPU)
    num_saved = sum(family.num_shared * (len(family.sequences) - 1) for family in sharing)
    assert len(pack.token_ids_T) == sum(len(ids) for ids in all_ids) - num_saved
    found, entropies = token_log_probs(model, pack)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=0)
    weights = torch.linspace(-1, 1, len(found))  # each sequence has an advantage of its own
    for got, wanted in zip(
        gradients(model, (found * weights).mean()), gradients(model, (expected * weights).mean()), strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-6 * max(1.0, float(wanted.abs().max())), rtol=0)
