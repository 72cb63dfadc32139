"""Float32 behind every weight, rates that rise and fall, and a gradient that is no number and changes nothing."""

import pytest
import torch

from rstar2.train.learning.optimizer import Optimizer, cosine_factor, warmup_factor

pytestmark = pytest.mark.unit


def test_a_small_rate_moves_a_bfloat16_weight_after_enough_steps() -> None:
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = Optimizer({"w": weight}, weight_decay=0.0)
    address, values = weight.data_ptr(), []
    for _ in range(5000):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-6, max_grad_norm=1.0)
        values.append(weight[0].item())
    assert values[0] == 1.0, "one step is less than the last bit"
    assert values[-1] == pytest.approx(1 - 5000e-6, abs=2**-8), "many are not"
    assert values[-1] < 1.0
    assert weight.data_ptr() == address, "whoever shares the tensor sees the new values"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded_it_goes_on_as_if_never_stopped(dtype: torch.dtype) -> None:
    def advance(optimizer: Optimizer, weight: torch.Tensor, steps: range) -> None:
        for step in steps:
            weight.grad = torch.full_like(weight, 0.1 * step - 0.3)
            optimizer.step(1e-3, 1.0)

    whole, first = (torch.nn.Parameter(torch.linspace(-1, 1, 8, dtype=dtype)) for _ in range(2))
    advance(Optimizer({"w": whole}, 0.01), whole, range(10))
    stopped = Optimizer({"w": first}, 0.01)
    advance(stopped, first, range(4))
    second = torch.nn.Parameter(first.detach().clone())
    resumed = Optimizer({"w": second}, 0.01)
    resumed.load_state_dict(stopped.state_dict())
    advance(resumed, second, range(4, 10))
    assert torch.equal(whole, second)


def test_micro_batches_of_a_bfloat16_model_add_up_in_float32() -> None:
    """Of 1 + 255 x 1/256, summed one by one in bfloat16, nothing would be left but the 1."""
    parts = [1.0, *[1 / 256] * 255]
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = Optimizer({"w": weight}, weight_decay=0.0)
    for part in parts:
        (weight * part).sum().backward()
    assert optimizer.step(0.0, max_grad_norm=1e9) == pytest.approx(sum(parts))


def test_a_reset_forgets_the_moments_and_keeps_the_weights() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer({"w": weight}, weight_decay=0.0)
    weight.grad = torch.ones(2)
    optimizer.step(0.1, 10.0)
    before = weight.detach().clone()
    optimizer.reset()
    assert torch.equal(weight, before)
    weight.grad = -torch.ones(2)
    optimizer.step(0.1, 10.0)
    # The first step of AdamW goes its whole rate against the gradient; with old moments it would go less far.
    torch.testing.assert_close(weight.detach(), before + 0.1, atol=1e-5, rtol=0)


def test_gradients_are_clipped_and_what_is_no_number_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Optimizer({"w": weight}, weight_decay=0.5)
    weight.grad = torch.tensor([3.0, 4.0])
    assert optimizer.step(0.0, max_grad_norm=1.0) == pytest.approx(5.0)
    assert weight.grad is None
    weight.grad = torch.tensor([float("nan"), 1.0])
    norm = optimizer.step(0.1, max_grad_norm=1.0)
    assert norm != norm
    assert torch.equal(weight.detach(), torch.ones(2))


def test_rates() -> None:
    assert [warmup_factor(step, 3) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0
    rates = [cosine_factor(step, 100, 0.04) for step in range(100)]
    assert rates[:4] == [0.2, 0.4, 0.6, 0.8]
    assert max(rates) == rates[4] == 1.0
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.01
