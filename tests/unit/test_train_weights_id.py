"""Which weights these are: the same name for the same bits, another for any others."""

import pytest
import torch
from torch import Tensor

from rstar2.train.policy import weights_id as module
from rstar2.train.policy.weights_id import weights_id

pytestmark = pytest.mark.unit


def weights(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(12, 5, generator=generator).to(dtype) for name in ("a", "b")}


def last_bit(tensor: Tensor, *place: int) -> None:
    tensor[place] = torch.nextafter(tensor[place], torch.tensor(9.0, dtype=tensor.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_last_bit_of_any_number_and_the_order_of_numbers_make_others(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE_SIZE", 7)
    names = {weights_id(weights(dtype))}
    assert names == {weights_id(weights(dtype))}
    for row in range(12):
        for column in range(5):
            changed = weights(dtype)
            last_bit(changed["b"], row, column)
            names.add(weights_id(changed))
    assert len(names) == 61
    swapped = weights(dtype)
    swapped["a"][[0, 1]] = swapped["a"][[1, 0]]
    moved = weights(dtype)
    moved["a"], moved["b"] = moved["b"], moved["a"]
    negated = {name: -tensor for name, tensor in weights(dtype).items()}
    both = weights(dtype)
    both["a"] = -both["a"]
    assert len(names | {weights_id(others) for others in (swapped, moved, negated, both)}) == 65


def test_the_same_numbers_in_another_format_under_another_name_or_in_another_shape_are_others() -> None:
    same = weights(torch.bfloat16)
    others = (
        {name: tensor.float() for name, tensor in same.items()},
        {name.upper(): tensor for name, tensor in same.items()},
        {name: tensor.reshape(5, 12) for name, tensor in same.items()},
    )
    assert len({weights_id(same), *map(weights_id, others)}) == 4
    assert weights_id({name: tensor.t().contiguous().t() for name, tensor in same.items()}) == weights_id(same), (
        "however it lies in memory"
    )
