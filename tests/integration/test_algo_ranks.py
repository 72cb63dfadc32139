"""One and two data-parallel ranks end an optimizer step with the same gradient, summed or averaged by DDP."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from rstar2.algo import policy_loss

pytestmark = pytest.mark.integration

VOCABULARY, NUM_ROLLOUTS, LENGTH = 13, 6, 17


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Tanh(), torch.nn.Linear(8, VOCABULARY))


def make_batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (NUM_ROLLOUTS, LENGTH)
    # Rollouts of very different length, so that the ranks hold very different numbers of tokens.
    lengths = torch.tensor([17, 2, 16, 1, 15, 3])
    return {
        "ids": torch.randint(VOCABULARY, shape, generator=generator),
        "old": -torch.rand(shape, generator=generator) * 2 - 1.5,
        "advantages": torch.randn((NUM_ROLLOUTS, 1), generator=generator),
        "mask": torch.arange(LENGTH) < lengths[:, None],
    }


def backward(model: torch.nn.Module, rows: slice, num_averaged_ranks: int) -> dict[str, torch.Tensor]:
    batch = make_batch()
    part = {name: values[rows] for name, values in batch.items()}
    log_probs = model(part["ids"]).log_softmax(-1).gather(-1, part["ids"][..., None])[..., 0]
    result = policy_loss(
        log_probs,
        part["old"],
        part["advantages"],
        part["mask"],
        num_tokens=int(batch["mask"].sum()),
        num_averaged_ranks=num_averaged_ranks,
    )
    result.loss.backward()  # type: ignore[no-untyped-call]
    return result.metrics


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def run_rank(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    rows = slice(rank, None, world_size)

    averaged = DistributedDataParallel(make_model())
    metrics = backward(averaged, rows, num_averaged_ranks=world_size)
    for value in metrics.values():
        dist.all_reduce(value)

    summed = make_model()
    backward(summed, rows, num_averaged_ranks=1)
    for parameter in summed.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)

    if rank == 0:
        torch.save((flat_gradient(averaged), flat_gradient(summed), metrics), f"{folder}/result.pt")
    dist.barrier()
    dist.destroy_process_group()
    # Python 3.11 ends a communication thread that still wants the interpreter while it shuts down by a call that
    # aborts the process. Nothing is left to do, so it does not shut down.
    os._exit(0)


def test_two_ranks_give_the_gradient_of_one(tmp_path: Path) -> None:
    model = make_model()
    metrics = backward(model, slice(None), num_averaged_ranks=1)
    expected = flat_gradient(model)

    mp.spawn(run_rank, args=(2, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    averaged, summed, rank_metrics = torch.load(tmp_path / "result.pt")

    torch.testing.assert_close(averaged, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(summed, expected, atol=1e-6, rtol=1e-6)
    assert expected.abs().max() > 1e-2
    for name, value in metrics.items():
        torch.testing.assert_close(rank_metrics[name], value, atol=1e-5, rtol=1e-5)
