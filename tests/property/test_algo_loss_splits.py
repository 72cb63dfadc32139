"""One gradient, to 1e-6, however the tokens of an optimizer step are cut into micro-batches, packed or padded."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.algo import LossSettings, policy_loss

pytestmark = pytest.mark.property

VOCABULARY, WIDTH = 11, 6
SETTINGS = st.sampled_from([LossSettings(), LossSettings(kl_coef=0.1, tis_cap=1.2)])


class Rollout:
    """Token ids, what was sampled, and the log-probabilities of three other policies."""

    def __init__(self, length: int, generator: torch.Generator) -> None:
        self.ids = torch.randint(VOCABULARY, (length,), generator=generator)
        self.mask = torch.rand(length, generator=generator) < 0.7
        self.advantage = torch.randn((), generator=generator)
        self.old, self.engine, self.reference = (-torch.rand(length, generator=generator) * 3 - 1 for _ in range(3))


def token_log_probs(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Of a model without attention, so that packing changes nothing but the layout."""
    logits: torch.Tensor = model(ids)
    return logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY))


def packed(rollouts: Sequence[Rollout]) -> dict[str, torch.Tensor]:
    fields = {name: torch.cat([getattr(r, name) for r in rollouts]) for name in ("ids", "mask", "old", "engine")}
    fields["reference"] = torch.cat([r.reference for r in rollouts])
    fields["advantages"] = torch.cat([r.advantage.expand(len(r.ids)) for r in rollouts])
    return fields


def padded(rollouts: Sequence[Rollout]) -> dict[str, torch.Tensor]:
    def pad(name: str) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([getattr(r, name) for r in rollouts], batch_first=True)

    fields = {name: pad(name) for name in ("ids", "mask", "old", "engine", "reference")}
    fields["advantages"] = torch.stack([r.advantage for r in rollouts])[:, None]
    return fields


def gradient(
    micro_batches: Sequence[dict[str, torch.Tensor]], num_tokens: int, loss_settings: LossSettings
) -> tuple[torch.Tensor, dict[str, float]]:
    model, totals = make_model(), dict[str, float]()
    for batch in micro_batches:
        result = policy_loss(
            token_log_probs(model, batch["ids"]),
            batch["old"],
            batch["advantages"],
            batch["mask"],
            num_tokens=num_tokens,
            settings=loss_settings,
            engine_log_probs=batch["engine"],
            reference_log_probs=batch["reference"],
        )
        result.loss.backward()  # type: ignore[no-untyped-call]
        for name, value in result.metrics.items():
            totals[name] = totals.get(name, 0.0) + value.item()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), totals


@settings(deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=10), st.integers(0, 2**31), SETTINGS, st.data())
def test_any_split_gives_the_same_gradient_and_metrics(
    lengths: list[int], seed: int, loss_settings: LossSettings, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rollouts = [Rollout(length, generator) for length in lengths]
    num_tokens = max(1, sum(int(r.mask.sum()) for r in rollouts))
    whole, metrics = gradient([packed(rollouts)], num_tokens, loss_settings)

    order = data.draw(st.permutations(rollouts))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(order) - 1), max_size=len(order) - 1)))
    parts = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    layouts = [data.draw(st.sampled_from([packed, padded])) for _ in parts]
    split, split_metrics = gradient(
        [layout(part) for layout, part in zip(layouts, parts, strict=True)], num_tokens, loss_settings
    )
    torch.testing.assert_close(split, whole, atol=1e-6, rtol=1e-6)
    assert split_metrics == pytest.approx(metrics, abs=1e-5)


def test_the_mean_of_micro_batch_means_would_be_another_gradient() -> None:
    """The check above can fail: what others do, a token mean per micro-batch, is not the same."""
    generator = torch.Generator().manual_seed(0)
    rollouts = [Rollout(length, generator) for length in (3, 40, 12)]
    num_tokens = sum(int(r.mask.sum()) for r in rollouts)
    whole, _ = gradient([packed(rollouts)], num_tokens, LossSettings())
    means = [gradient([packed([r])], int(r.mask.sum()), LossSettings())[0] for r in rollouts]
    assert (torch.stack(means).mean(0) - whole).abs().max() > 1e-3
