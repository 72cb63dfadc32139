"""How much of a GPU the engine takes for its cache: what it is given, and never what is not free."""

import pytest
import torch

from rstar2.engine.embedded.options import CUDA_BLOCK_SIZE, EmbeddedOptions, choose_limits
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

GIB = 1 << 30
BYTES_PER_TOKEN = 1 << 20


@pytest.mark.parametrize(
    ("share", "free_gib", "cache_gib"),
    [(None, 80, 40), (0.6, 80, 60), (0.6, 20, 19), (1.0, 100, 95)],
)
def test_the_cache_is_the_share_of_the_gpu_as_far_as_it_is_free(
    monkeypatch: pytest.MonkeyPatch, share: float | None, free_gib: int, cache_gib: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free_gib * GIB, 100 * GIB))
    limits = choose_limits(EmbeddedOptions(gpu_memory_share=share), torch.device("cuda"), 4096, BYTES_PER_TOKEN)
    assert limits.num_blocks == cache_gib * GIB // BYTES_PER_TOKEN // CUDA_BLOCK_SIZE
    assert limits.block_size == CUDA_BLOCK_SIZE


@pytest.mark.parametrize("share", [0.0, 1.1, -0.5])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(UserError, match="gpu_memory_share"):
        EmbeddedOptions(gpu_memory_share=share)
