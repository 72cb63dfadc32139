"""The loss against a slow loop, what it leaves alone, and that its clip binds."""

import math

import pytest
import torch

from rstar2.algo import LossSettings, policy_loss
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

Rows = list[list[float]]


def slow_loss(
    new: Rows,
    old: Rows,
    advantages: list[float],
    mask: list[list[bool]],
    settings: LossSettings,
    engine: Rows,
    ref: Rows,
) -> dict[str, float]:
    """Token by token, as one would write it on a blackboard."""
    num_tokens = sum(map(sum, mask))
    total = {"loss": 0.0, "clip_low_share": 0.0, "clip_high_share": 0.0, "ratio": 0.0, "mismatch": 0.0}
    for row in range(len(new)):
        for t in range(len(new[row])):
            if not mask[row][t]:
                continue
            advantage, ratio = advantages[row], math.exp(new[row][t] - old[row][t])
            low, high = 1 - settings.clip_low, 1 + settings.clip_high
            objective = min(ratio * advantage, min(max(ratio, low), high) * advantage)
            if settings.clip_dual is not None and advantage < 0:
                objective = max(objective, settings.clip_dual * advantage)
            if settings.tis_cap is not None:
                objective *= min(math.exp(old[row][t] - engine[row][t]), settings.tis_cap)
            difference = ref[row][t] - new[row][t]
            total["loss"] += -objective + settings.kl_coef * (math.exp(difference) - difference - 1)
            total["clip_low_share"] += advantage < 0 and ratio < low
            total["clip_high_share"] += advantage > 0 and ratio > high
            total["ratio"] += ratio
            total["mismatch"] += abs(old[row][t] - engine[row][t])
    return {name: value / num_tokens for name, value in total.items()}


@pytest.mark.parametrize(
    "settings",
    [
        LossSettings(),
        LossSettings(kl_coef=0.05),
        LossSettings(tis_cap=1.1),
        LossSettings(tis_cap=1.1, clip_dual=1.4),
        LossSettings(clip_low=0.1, clip_high=0.5, kl_coef=1.0, tis_cap=2.0),
    ],
)
def test_agrees_with_the_slow_loop(settings: LossSettings) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (5, 40)
    new = -torch.rand(shape, generator=generator, dtype=torch.float64) * 2
    old, engine, ref = (new + torch.randn(shape, generator=generator, dtype=torch.float64) * 0.4 for _ in range(3))
    advantages = torch.tensor([[1.3], [-0.7], [0.2], [-2.0], [0.0]], dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.6
    result = policy_loss(
        new,
        old,
        advantages,
        mask,
        num_tokens=int(mask.sum()),
        settings=settings,
        engine_log_probs=engine,
        reference_log_probs=ref,
    )
    expected = slow_loss(
        new.tolist(), old.tolist(), advantages[:, 0].tolist(), mask.tolist(), settings, engine.tolist(), ref.tolist()
    )
    assert result.loss.item() == pytest.approx(expected["loss"], abs=1e-12)
    assert expected["clip_low_share"] > 0 < expected["clip_high_share"]
    for name, value in expected.items():
        assert result.metrics[name].item() == pytest.approx(value, abs=1e-7), name


def test_gradient_of_the_first_step_is_the_policy_gradient() -> None:
    log_probs = torch.tensor([-0.5, -1.0, -2.0, -0.1], requires_grad=True)
    advantages = torch.tensor([1.5, 1.5, -0.5, -0.5])
    result = policy_loss(log_probs, log_probs.detach(), advantages, torch.ones(4), num_tokens=4)
    result.loss.backward()
    torch.testing.assert_close(log_probs.grad, -advantages / 4)
    assert result.metrics["ratio_deviation"].item() == 0.0


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_masked_tokens_are_never_read(garbage: float) -> None:
    log_probs = torch.tensor([-0.5, garbage, -2.0], requires_grad=True)
    other = torch.tensor([-0.4, garbage, -1.9])
    mask = torch.tensor([True, False, True])
    result = policy_loss(
        log_probs,
        other,
        torch.tensor([1.0, garbage, -1.0]),
        mask,
        num_tokens=2,
        settings=LossSettings(kl_coef=0.1, tis_cap=2.0),
        engine_log_probs=other,
        reference_log_probs=other,
        entropies=other,
    )
    result.loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.isfinite().all()
    assert log_probs.grad[1] == 0
    assert all(value.isfinite() for value in result.metrics.values())


def test_a_wild_ratio_gives_a_finite_gradient() -> None:
    log_probs = torch.tensor([0.0, 0.0, -500.0], requires_grad=True)
    old = torch.tensor([-500.0, -500.0, 0.0])
    policy_loss(log_probs, old, torch.tensor([1.0, -1.0, 1.0]), torch.ones(3), num_tokens=3).loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.isfinite().all()


def test_a_micro_batch_without_kept_tokens_has_a_gradient_of_zero() -> None:
    log_probs = torch.tensor([-0.5, -1.0], requires_grad=True)
    result = policy_loss(log_probs, log_probs.detach(), torch.ones(2), torch.zeros(2), num_tokens=9)
    result.loss.backward()
    torch.testing.assert_close(log_probs.grad, torch.zeros(2))


def test_half_precision_is_computed_in_single() -> None:
    log_probs = torch.full((4096,), -1.0, dtype=torch.bfloat16, requires_grad=True)
    result = policy_loss(log_probs, log_probs.detach(), torch.ones(4096), torch.ones(4096), num_tokens=4096)
    assert result.loss.dtype is torch.float32
    assert result.loss.item() == -1.0


def test_the_clip_binds_from_the_second_optimizer_step_on() -> None:
    """Ten steps on the same rollouts: without a clip the ratios run away, with it they stop near its bounds."""
    token, advantage = torch.tensor([0, 1]), torch.tensor([1.0, -1.0])

    def train(settings: LossSettings) -> tuple[list[dict[str, float]], torch.Tensor]:
        logits = torch.zeros(2, 2, requires_grad=True)
        optimizer = torch.optim.SGD([logits], lr=0.5)
        old = logits.detach().log_softmax(-1).gather(-1, token[:, None])[:, 0]
        seen = []
        for _ in range(10):
            optimizer.zero_grad()
            new = logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]
            result = policy_loss(new, old, advantage, torch.ones(2), num_tokens=2, settings=settings)
            result.loss.backward()
            optimizer.step()
            seen.append({name: value.item() for name, value in result.metrics.items()})
        new = logits.detach().log_softmax(-1).gather(-1, token[:, None])[:, 0]
        return seen, (new - old).exp()

    clipped, ratios = train(LossSettings())
    _, free_ratios = train(LossSettings(clip_low=0.99, clip_high=99.0))
    assert clipped[0]["clip_low_share"] == clipped[0]["clip_high_share"] == 0.0
    assert clipped[-1]["clip_low_share"] == clipped[-1]["clip_high_share"] == 0.5
    # Once outside, a token has no gradient: it overshoots its bound by at most one step.
    assert 1.28 < ratios[0] < 1.42
    assert 0.65 < ratios[1] < 0.8
    assert free_ratios[0] > 1.6
    assert free_ratios[1] < 0.4


def test_a_token_of_negative_advantage_beyond_the_dual_clip_has_no_gradient() -> None:
    old = torch.log(torch.tensor([0.1, 0.1, 0.1]))
    new = torch.log(torch.tensor([0.25, 0.35, 0.35])).requires_grad_()
    advantages = torch.tensor([-1.0, -1.0, 1.0])
    result = policy_loss(new, old, advantages, torch.ones(3), num_tokens=3, settings=LossSettings(clip_dual=3.0))
    result.loss.backward()
    assert result.metrics["clip_dual_share"].item() == pytest.approx(1 / 3)
    assert new.grad is not None and (new.grad != 0).tolist() == [True, False, False]
    assert result.metrics["loss"].item() == pytest.approx((2.5 + 3.0 - 1.28) / 3)


def test_entropy_is_averaged_over_kept_tokens() -> None:
    zeros = torch.zeros(4)
    result = policy_loss(
        zeros, zeros, zeros, torch.tensor([1, 1, 0, 0]), num_tokens=2, entropies=torch.tensor([1.0, 2.0, 9.0, 9.0])
    )
    assert result.metrics["entropy"].item() == 1.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 0}, "num_tokens is 0"),
        ({"settings": LossSettings(tis_cap=2.0)}, "tis_cap is set without engine_log_probs"),
        ({"settings": LossSettings(kl_coef=0.1)}, "kl_coef is set without reference_log_probs"),
        ({"advantages": torch.zeros(2)}, "1 dimensions and the mask 2"),
    ],
)
def test_impossible_arguments_are_refused(change: dict[str, object], message: str) -> None:
    zeros = torch.zeros(2, 2)
    arguments = {"log_probs": zeros, "old_log_probs": zeros, "advantages": zeros, "mask": zeros, "num_tokens": 1}
    with pytest.raises(UserError, match=message):
        policy_loss(**(arguments | change))  # type: ignore[arg-type]
