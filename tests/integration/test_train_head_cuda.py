"""The GPU's kernels of the head give what PyTorch's own operations give, and their gradient."""

import pytest
import torch
from torch import Tensor

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 4096, 49_152, 151_936])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_entropies_and_gradients(dtype: torch.dtype, vocab_size: int, temperature: float) -> None:
    from rstar2.train.head_cuda import LogProbs

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
