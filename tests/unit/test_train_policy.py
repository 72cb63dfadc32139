"""What the engine reads is what was learnt: the very tensors, or the base with the adapters added."""

from pathlib import Path

import pytest
import torch
from train_models import build_model, make_policy, make_rollouts

from rstar2.algo import LossSettings
from rstar2.engine.embedded import EmbeddedEngine, EmbeddedOptions
from rstar2.errors import UserError
from rstar2.train.learning.forward import Pack, token_log_probs, use_packed_attention
from rstar2.train.learning.optimizer import Optimizer
from rstar2.train.learning.update import UpdateSettings, update_policy
from rstar2.train.policy.policy import Policy

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("one_thread")]

SETTINGS = UpdateSettings(LossSettings(), 1.0, 4096, 1, 1.0)
LORA = {"rank": 4, "alpha": 8.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("tiny"), "qwen3")


def learn(policy: Policy) -> None:
    update_policy(policy, Optimizer(policy.parameters(), 0.0), [make_rollouts(policy, 4)], SETTINGS, lr=0.05)


def served_logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = policy.served(torch.tensor([[5, 6, 7, 8]])).logits
    return logits


async def test_full_fine_tuning_changes_the_tensors_that_the_engine_reads(folder: Path) -> None:
    policy = make_policy(folder)
    engine = EmbeddedEngine.on_model(policy.served, EmbeddedOptions(kv_cache_tokens=256, max_context_tokens=64))
    try:
        before = served_logits(policy)
        learn(policy)
        policy.publish()
        engine.weights_changed(1)
        assert not torch.allclose(served_logits(policy), before, atol=1e-3)
    finally:
        await engine.close()


def test_adapters_are_added_to_the_base_that_was_loaded_and_the_base_is_untouched(folder: Path) -> None:
    policy = make_policy(folder, lora=LORA)
    base = make_policy(folder).served.state_dict()
    assert all("lora" in name for name in policy.parameters())
    before = served_logits(policy)
    for _ in range(2):
        learn(policy)
        policy.publish()
    assert not torch.allclose(served_logits(policy), before, atol=1e-3)
    num_adapted = 0
    served = dict(policy.served.named_parameters())
    for name, module in policy.network.named_modules():
        if hasattr(module, "lora_A"):
            num_adapted += 1
            assert torch.equal(module.get_base_layer().weight, base[f"{name}.weight"]), "the base moved"
            delta = module.lora_B["default"].weight @ module.lora_A["default"].weight * 2.0
            torch.testing.assert_close(served[f"{name}.weight"], base[f"{name}.weight"] + delta, atol=1e-6, rtol=0)
    assert num_adapted == 2 * 7
    # The network with adapters and the served copy are one function.
    with torch.no_grad():
        policy.network.set_attn_implementation("sdpa")
        torch.testing.assert_close(
            policy.network(torch.tensor([[5, 6, 7, 8]])).logits, served_logits(policy), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("staleness", [0, 1])
def test_trainer_and_engine_multiply_by_the_same_bits(folder: Path, staleness: int) -> None:
    """In bfloat16 a sum of two products is not the product by their rounded sum, whatever the model's size."""
    algo = {"tis_cap": 2.0} if staleness else {}
    policy = make_policy(folder, dtype="bfloat16", lora=LORA, algo=algo, max_staleness=staleness)
    before = served_logits(policy)
    for _ in range(2):
        learn(policy)
    if staleness:
        assert torch.equal(served_logits(policy), before), "what is learnt was seen before it was published"
    policy.publish()
    assert not torch.equal(served_logits(policy), before)
    state = dict(policy.served_state())
    for name, weight in policy.served.named_parameters():
        assert torch.equal(weight, state[name]), name
    pack = Pack.of([[5, 6, 7, 8, 9]], [[False, True, True, True, True]], policy.device)
    use_packed_attention(policy.served)
    with torch.no_grad():
        assert torch.equal(policy.token_log_probs(pack)[0], token_log_probs(policy.served, pack)[0])


def test_mistakes_in_the_model_section_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'w_pack'"):
        make_policy(folder, lora={**LORA, "target_modules": ["w_pack"]})
    config = (
        (folder / "config.json").read_text().replace('"max_position_embeddings": 256', '"max_position_embeddings": 128')
    )
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"model\.context_tokens is 256.*128"):
        make_policy(tmp_path)


def test_bfloat16_weights_are_learnt_through_float32(folder: Path) -> None:
    policy = make_policy(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.parameters().values()} == {torch.bfloat16}
    optimizer = Optimizer(policy.parameters(), 0.0)
    assert {master.dtype for master in optimizer.state_dict().values()} == {torch.float32}
    assert len(optimizer.state_dict()) == len(policy.parameters())
