"""Draws: reproducible, alone in their row, distributed as asked, and cut as asked."""

import pytest
import torch

from rstar2.engine.embedded.sampler import cut, draw, uniform

pytestmark = pytest.mark.unit


def test_uniform_numbers_depend_on_seed_and_position_alone() -> None:
    seeds, positions = torch.arange(100).repeat(100), torch.arange(100).repeat_interleave(100)
    numbers = uniform(seeds, positions)
    assert len(numbers.unique()) == 10_000
    assert torch.equal(numbers[1234:1235], uniform(seeds[1234:1235], positions[1234:1235]))
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    counts = torch.histc(numbers.float(), bins=10, min=0, max=1)
    # Ten bins of 1,000 expected each, with a standard deviation of 30.
    assert (counts - 1000).abs().max() < 150


def test_tokens_come_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf, 0.5])
    number = 20_000
    temperature = 0.7
    token_ids, log_probs, entropies = draw(
        logits.repeat(number, 1),
        uniform(torch.arange(number), torch.zeros(number, dtype=torch.long)),
        torch.full((number,), 1 / temperature),
    )
    wanted = (logits / temperature).softmax(-1)
    frequencies = torch.bincount(token_ids, minlength=5) / number
    assert (frequencies - wanted).abs().max() < 0.015
    assert frequencies[3] == 0
    torch.testing.assert_close(log_probs, wanted.log()[token_ids])
    torch.testing.assert_close(entropies[0], torch.special.entr(wanted).sum())


def test_greedy_takes_the_likeliest_with_its_probability_at_temperature_1() -> None:
    logits = torch.randn(3, 50)
    token_ids, log_probs, _ = draw(logits.clone(), torch.rand(3), torch.zeros(3))
    assert torch.equal(token_ids, logits.argmax(-1))
    torch.testing.assert_close(log_probs, logits.log_softmax(-1).max(-1).values)


def test_a_number_beyond_the_rounded_total_is_the_likeliest_token() -> None:
    token_ids, *_ = draw(torch.tensor([[1.0, 3.0, -torch.inf]]), torch.tensor([2.0]), torch.ones(1))
    assert token_ids.tolist() == [1]


def test_no_bit_of_a_draw_depends_on_the_rows_beside_it() -> None:
    torch.manual_seed(0)
    logits, numbers, scales = torch.randn(32, 49_157) * 3, torch.rand(32).double(), torch.rand(32) + 0.5
    whole = draw(logits.clone(), numbers, scales, room_BV=torch.empty_like(logits))
    for start in range(0, 32, 4):
        rows = slice(start, start + 4)
        for value, part in zip(whole, draw(logits[rows].clone(), numbers[rows], scales[rows]), strict=True):
            assert torch.equal(value[rows], part)


@pytest.mark.parametrize(
    ("top_k", "top_p", "left"),
    [(0, 1.0, [0, 1, 2, 3]), (2, 1.0, [1, 3]), (0, 0.7, [1, 3]), (1, 0.7, [3]), (0, 0.01, [3]), (3, 0.95, [1, 2, 3])],
)
def test_cuts(top_k: int, top_p: float, left: list[int]) -> None:
    logits = torch.tensor([[0.05, 0.3, 0.1, 0.55]]).log()
    remaining = cut(logits, torch.ones(1), torch.tensor([top_k]), torch.tensor([top_p]))
    assert remaining[0].isfinite().nonzero()[:, 0].tolist() == left
