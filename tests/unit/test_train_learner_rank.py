"""One process that learns alone: what it saves is all that is needed to go on and to serve the same, bit for bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from train_models import CONVERSATIONS, make_chat, make_policy, make_rollouts
from transformers import AutoModelForCausalLM

from rstar2.algo import LossSettings
from rstar2.errors import InfrastructureError, UserError
from rstar2.train.learning.forward import Pack, token_log_probs, use_packed_attention
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.learning.sft import SftSettings, render_all
from rstar2.train.learning.update import Rollout, UpdateSettings

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("one_thread")]

LORA = {"rank": 4, "alpha": 8.0, "dropout": 0.1}
SETTINGS = UpdateSettings(LossSettings(), 1.0, 64, 2, 1.0)
KINDS: dict[str, dict[str, Any]] = {"full": {}, "adapters": {"lora": LORA}, "bfloat16": {"dtype": "bfloat16"}}


@pytest.fixture(scope="module")
def groups(tiny_policy: Path) -> list[list[Rollout]]:
    rollouts = make_rollouts(make_policy(tiny_policy), 6)
    return [rollouts[:3], rollouts[3:]]


def served(learner: LearnerRank) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in learner.served_state()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("kind", KINDS)
def test_taken_up_again_it_goes_on_as_if_never_stopped(
    tiny_policy: Path, groups: list[list[Rollout]], tmp_path: Path, kind: str
) -> None:
    whole, resumed = (LearnerRank(make_policy(tiny_policy, **KINDS[kind]), 0.01) for _ in range(2))
    untrained = served(whole)
    for seed in range(3):
        whole.update(groups, SETTINGS, 0.02, seed)
    whole.save(tmp_path)
    resumed.load(tmp_path)
    assert_equal(served(resumed), served(whole))
    assert whole.update(groups, SETTINGS, 0.02, 3) == resumed.update(groups, SETTINGS, 0.02, 3)
    assert_equal(served(resumed), served(whole))
    assert any(not torch.equal(tensor, untrained[name]) for name, tensor in served(whole).items())


def test_a_reset_optimizer_is_saved_as_one(tiny_policy: Path, groups: list[list[Rollout]], tmp_path: Path) -> None:
    first, second = (LearnerRank(make_policy(tiny_policy), 0.01) for _ in range(2))
    first.update(groups, SETTINGS, 0.02, 0)
    first.reset_optimizer()
    first.save(tmp_path)
    second.update(groups, SETTINGS, 0.02, 1)
    second.load(tmp_path)
    assert first.update(groups, SETTINGS, 0.02, 2) == second.update(groups, SETTINGS, 0.02, 2)
    assert_equal(served(first), served(second))


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_serves_is_what_an_engine_in_the_process_reads_and_what_it_exports(
    tiny_policy: Path, groups: list[list[Rollout]], tmp_path: Path, kind: str
) -> None:
    learner = LearnerRank(make_policy(tiny_policy, **KINDS[kind]), 0.01)
    learner.update(groups, SETTINGS, 0.02, 0)
    learner.policy.publish()
    assert_equal(served(learner), dict(learner.policy.served.named_parameters()))
    learner.export(tmp_path)
    exported: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert_equal(dict(exported.named_parameters()), served(learner))


def test_the_seed_decides_what_is_dropped(tiny_policy: Path) -> None:
    examples, _ = render_all(CONVERSATIONS, make_chat(tiny_policy), 10_000)
    settings = SftSettings(
        epochs=4, lr=0.01, warmup_share=0.0, batch_size=4, micro_batch_tokens=512, max_grad_norm=1.0, stream="s"
    )

    def losses(seed: int) -> list[float]:
        learner = LearnerRank(make_policy(tiny_policy, lora=LORA, gradient_checkpointing=True), 0.0)
        return [learner.warm_up_step(examples, step, settings, seed)["loss"] for step in range(3)]

    assert losses(1) == losses(1)
    assert losses(1)[2] != losses(2)[2]


def test_a_state_of_another_model_is_refused(tiny_policy: Path, tmp_path: Path) -> None:
    learner = LearnerRank(make_policy(tiny_policy), 0.01)
    LearnerRank(make_policy(tiny_policy, lora=LORA), 0.01).save(tmp_path)
    with pytest.raises(UserError, match="another model: its parameters have other names"):
        learner.load(tmp_path)
    with pytest.raises(UserError, match=r"another model: .*lora_A.* has another shape"):
        LearnerRank(make_policy(tiny_policy, lora={**LORA, "rank": 2}), 0.01).load(tmp_path)


def test_a_reference_that_cannot_be_written_is_one_sentence(tiny_policy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match=r"cannot write .*reference: .*Free some space and try again"):
        LearnerRank(make_policy(tiny_policy), 0.01).hold_reference(tmp_path / "file" / "reference")


def test_merged_adapters_give_what_adapters_beside_the_layers_give(tiny_policy: Path) -> None:
    merged, beside = (make_policy(tiny_policy, lora={"rank": 4, "alpha": 8.0}) for _ in range(2))
    use_packed_attention(beside.network)
    beside = replace(beside, _forward=token_log_probs)
    pack = Pack.of([[1, 2, 3, 4, 5]], [[False, True, True, True, True]], torch.device("cpu"))
    found = {}
    for name, policy in (("merged", merged), ("beside", beside)):
        with torch.no_grad():
            for parameter in policy.parameters().values():
                parameter.add_(0.05)
        log_probs, _ = policy.token_log_probs(pack)
        log_probs.sum().backward()
        found[name] = (log_probs.detach(), [parameter.grad for parameter in policy.parameters().values()])
    torch.testing.assert_close(found["merged"], found["beside"])


def test_exported_adapters_are_read_by_peft(tiny_policy: Path, groups: list[list[Rollout]], tmp_path: Path) -> None:
    from peft import PeftModel

    learner = LearnerRank(make_policy(tiny_policy, lora={"rank": 4, "alpha": 8.0}), 0.0)
    learner.update(groups, SETTINGS, 1e-2, 0)
    learner.export(tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).merge_and_unload()
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, parameter in adapted.named_parameters():
        torch.testing.assert_close(parameter, expected.get_parameter(name), msg=name)


def test_a_gpu_that_has_become_too_small_is_a_sentence(tiny_policy: Path, groups: list[list[Rollout]]) -> None:
    def forward(*_: object, **__: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")

    learner = LearnerRank(replace(make_policy(tiny_policy), _forward=forward), 0.01)
    with pytest.raises(UserError, match=r"^train.micro_batch_tokens: .*CUDA out of memory\).*start a run with \d+$"):
        learner.update(groups, SETTINGS, 1e-2, 0)
