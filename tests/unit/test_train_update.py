"""One gradient however a step is cut; the clip, the KL term and the importance weights where they are asked for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_models import CONVERSATIONS, make_chat, make_policy, make_rollouts

from rstar2.algo import LossSettings
from rstar2.errors import UserError
from rstar2.records import Group, Outcome, Selection, StopReason, Trace, Turn
from rstar2.records.codec import decode, encode
from rstar2.train.learning.optimizer import Optimizer
from rstar2.train.learning.reference import Reference
from rstar2.train.learning.sft import SftSettings, render_all, sft_step
from rstar2.train.learning.update import Rollout, UpdateSettings, kept_rollouts, update_policy
from rstar2.train.policy.policy import Policy

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("one_thread")]

SETTINGS = UpdateSettings(
    LossSettings(), temperature=1.0, micro_batch_tokens=4096, optimizer_steps_per_batch=1, max_grad_norm=1e9
)
SFT = SftSettings(
    epochs=1, lr=0.0, warmup_share=0.0, batch_size=5, micro_batch_tokens=4096, max_grad_norm=1e9, stream="s"
)


class Kept(Optimizer):
    """Keeps the gradient of each step, which the real one then uses and clears."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.parameters(), weight_decay=0.0)
        self.policy = policy
        self.gradients: list[torch.Tensor] = []

    def step(self, lr: float, max_grad_norm: float) -> float:
        self.gradients.append(
            torch.cat(
                [
                    torch.zeros(parameter.numel()) if parameter.grad is None else parameter.grad.flatten().clone()
                    for parameter in self.policy.parameters().values()
                ]
            )
        )
        return super().step(lr, max_grad_norm)


def update(
    tiny_policy: Path,
    groups: list[list[Rollout]],
    settings: UpdateSettings,
    lr: float = 0.0,
    reference_offset: float | None = None,
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """`reference_offset` is added to all weights of the reference; None: there is none."""
    policy = make_policy(tiny_policy)
    kept = Kept(policy)
    reference = None
    if reference_offset is not None:
        reference = Reference(policy)
        for value in reference.state.values():
            value += reference_offset
    values = update_policy(policy, kept, groups, settings, lr, reference)
    return kept.gradients, values


@pytest.fixture(scope="module")
def groups(tiny_policy: Path) -> list[list[Rollout]]:
    rollouts = make_rollouts(make_policy(tiny_policy), 8)
    return [rollouts[start : start + 2] for start in range(0, 8, 2)]


def test_one_gradient_for_any_micro_batching(tiny_policy: Path, groups: list[list[Rollout]]) -> None:
    (whole,), expected = update(tiny_policy, groups, SETTINGS)
    assert float(whole.norm()) > 0.01
    for micro_batch_tokens in (1, 24, 45):
        (cut,), values = update(tiny_policy, groups, replace(SETTINGS, micro_batch_tokens=micro_batch_tokens))
        torch.testing.assert_close(cut, whole, atol=1e-6, rtol=0)
        assert values == pytest.approx(expected, abs=1e-5)
    assert expected["mismatch"] == pytest.approx(0, abs=1e-5)
    assert expected["ratio"] == pytest.approx(1)
    assert expected["clip_low_share"] == expected["clip_high_share"] == 0


def test_with_one_optimizer_step_nothing_clips_and_with_more_the_clip_binds(
    tiny_policy: Path, groups: list[list[Rollout]]
) -> None:
    gradients, values = update(tiny_policy, groups, replace(SETTINGS, optimizer_steps_per_batch=4), lr=0.05)
    assert len(gradients) == 4
    assert values["clip_low_share"] + values["clip_high_share"] > 0.05
    _, single = update(tiny_policy, groups, SETTINGS, lr=0.05)
    assert single["clip_low_share"] + single["clip_high_share"] == 0
    few, _ = update(tiny_policy, groups[:2], replace(SETTINGS, optimizer_steps_per_batch=4))
    assert len(few) == 2, "a group is never split, so there are no more steps than groups"


def test_the_old_policy_is_that_from_before_the_first_step(tiny_policy: Path, groups: list[list[Rollout]]) -> None:
    still, _ = update(tiny_policy, groups, replace(SETTINGS, optimizer_steps_per_batch=2), lr=0.0)
    _, moved = update(tiny_policy, groups, replace(SETTINGS, optimizer_steps_per_batch=2), lr=0.02)
    expected, _ = update(tiny_policy, groups[1::2], SETTINGS)
    torch.testing.assert_close(still[1], expected[0], atol=1e-6, rtol=0)
    assert moved["ratio_deviation"] > 0.01


def test_the_kl_term_pulls_towards_the_reference(tiny_policy: Path, groups: list[list[Rollout]]) -> None:
    with_kl = replace(SETTINGS, loss=LossSettings(kl_coef=0.5))
    (plain,), _ = update(tiny_policy, groups, SETTINGS)
    (pulled,), values = update(tiny_policy, groups, with_kl, reference_offset=0.05)
    assert values["reference_kl"] > 0
    assert not torch.allclose(plain, pulled, atol=1e-4)
    (same,), values = update(tiny_policy, groups, with_kl, reference_offset=0.0)
    assert values["reference_kl"] == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(plain, same, atol=1e-5, rtol=0)


def test_the_reference_leaves_the_policy_as_it_is(tiny_policy: Path) -> None:
    policy = make_policy(tiny_policy, gradient_checkpointing=True)
    before = {name: value.detach().clone() for name, value in policy.parameters().items()}
    reference = Reference(policy)
    for value in reference.state.values():
        value += 0.05
    with pytest.raises(KeyError), reference.in_place():
        assert not policy.network.training, "what the reference says has no dropout in it"
        assert not any(torch.equal(value, before[name]) for name, value in policy.parameters().items())
        raise KeyError
    assert policy.network.training
    assert all(torch.equal(value, before[name]) for name, value in policy.parameters().items())


def test_importance_weights_correct_for_an_engine_that_disagrees(
    tiny_policy: Path, groups: list[list[Rollout]]
) -> None:
    unlike = [
        [
            replace(rollout, engine_log_probs=tuple(value + 0.7 for value in rollout.engine_log_probs))
            for rollout in group
        ]
        for group in groups
    ]
    (plain,), values = update(tiny_policy, unlike, SETTINGS)
    assert values["mismatch"] == pytest.approx(0.7, abs=1e-5)
    (weighted,), _ = update(tiny_policy, unlike, replace(SETTINGS, loss=LossSettings(tis_cap=2.0)))
    # Each token was half as likely to the trainer as to the engine.
    torch.testing.assert_close(weighted, plain * torch.tensor(-0.7).exp(), atol=1e-6, rtol=1e-4)


def test_only_kept_rollouts_are_learnt_from_and_only_with_log_probabilities() -> None:
    turns = (
        Turn((5, 6), (-1.0, -2.0), "a", StopReason.END_OF_TURN, appended_ids=(7, 8)),
        Turn((9,), (-3.0,), "b", StopReason.END_OF_TURN),
    )
    traces = {name: Trace(name, "p", (1, 2), "", turns, Outcome.ANSWERED) for name in "ab"}
    group = Group(
        "g",
        "p",
        1,
        ("a", "b"),
        (1.0, 0.0),
        (0.0, 0.0),
        (0.0, 0.0),
        (0.5, None),
        (Selection.KEPT, Selection.DOWNSAMPLED),
    )
    (rollout,) = kept_rollouts(group, traces)
    assert rollout.token_ids == (1, 2, 5, 6, 7, 8, 9)
    assert rollout.mask == (False, False, True, True, False, False, True)
    assert rollout.engine_log_probs == (-1.0, -2.0, -3.0)
    assert (rollout.advantage, rollout.num_learnt) == (0.5, 3)
    silent = replace(traces["a"], turns=(replace(turns[0], log_probs=()), turns[1]))
    with pytest.raises(UserError, match="no log-probabilities"):
        kept_rollouts(group, {**traces, "a": silent})


def test_the_segments_of_a_rollout_share_its_advantage_and_have_each_sampled_token_once() -> None:
    turns = (
        Turn((5,), (-1.0,), "a", StopReason.END_OF_TURN, appended_ids=(7,)),
        Turn((9,), (-3.0,), "b", StopReason.END_OF_TURN),
        Turn((6,), (-2.0,), "c", StopReason.END_OF_TURN, prompt_ids=(1, 2, 5, 8)),
        Turn((4, 4), (-4.0, -5.0), "d", StopReason.END_OF_TURN, prompt_ids=(3,)),
    )
    trace = Trace("a", "p", (1, 2), "", turns, Outcome.ANSWERED)
    group = Group("g", "p", 1, ("a",), (1.0,), (0.0,), (0.0,), (0.5,), (Selection.KEPT,))
    rollouts = kept_rollouts(group, {"a": trace})
    assert [rollout.token_ids for rollout in rollouts] == [(1, 2, 5, 7, 9), (1, 2, 5, 8, 6), (3, 4, 4)]
    assert [sum(rollout.mask) for rollout in rollouts] == [2, 1, 2]
    assert [rollout.engine_log_probs for rollout in rollouts] == [(-1.0, -3.0), (-2.0,), (-4.0, -5.0)]
    assert {rollout.advantage for rollout in rollouts} == {0.5}
    assert decode(Trace, encode(trace)) == trace


def test_the_warm_up_has_one_loss_for_any_micro_batching(tiny_policy: Path) -> None:
    examples, _ = render_all(CONVERSATIONS, make_chat(tiny_policy), 10_000)
    results = []
    for micro_batch_tokens in (1, 300, 100_000):
        policy = make_policy(tiny_policy)
        kept = Kept(policy)
        values = sft_step(policy, kept, examples, 1, replace(SFT, micro_batch_tokens=micro_batch_tokens))
        results.append((kept.gradients[0], values))
    for gradient, values in results[1:]:
        torch.testing.assert_close(gradient, results[0][0], atol=1e-6, rtol=0)
        assert values["loss"] == pytest.approx(results[0][1]["loss"], abs=1e-5)
        assert values["num_tokens"] == results[0][1]["num_tokens"]


def test_the_warm_up_learns_the_format(tiny_policy: Path) -> None:
    policy = make_policy(tiny_policy)
    examples, _ = render_all(CONVERSATIONS, make_chat(tiny_policy), 10_000)
    settings = replace(SFT, epochs=10, lr=1e-2, max_grad_norm=1.0)
    optimizer = Optimizer(policy.parameters(), 0.0)
    losses = [sft_step(policy, optimizer, examples, step, settings)["loss"] for step in range(24)]
    assert settings.num_steps(len(examples)) == 24
    assert losses[-1] < 0.7 * losses[0]
