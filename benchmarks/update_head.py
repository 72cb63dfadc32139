"""The head of an update, forward and backward: the GPU's kernels beside PyTorch's own operations. Needs a CUDA GPU.

    python benchmarks/update_head.py [--tokens 65536] [--hidden 576] [--vocabulary 49152] [--repeats 5]

Both as an update uses them, in pieces whose logits are recomputed for the gradient (gradient checkpointing). Time and
peak memory include the product with the head's weights, which is the same in both. The defaults are SmolLM2-135M's.
"""

import argparse
import time

import torch
from torch import Tensor

from rstar2.train.learning.forward import ApplyHead, in_pieces, kernel_head, plain_head

HEADS: dict[str, ApplyHead] = {"PyTorch's operations": plain_head, "kernels": kernel_head}


def pass_through(apply_head: ApplyHead, head: torch.nn.Linear, hidden_SH: Tensor, targets_S: Tensor) -> None:
    log_probs, _entropies = in_pieces(apply_head, head, hidden_SH, targets_S, 1.0)
    log_probs.sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU: there is none")
    head = torch.nn.Linear(options.hidden, options.vocabulary, bias=False, device="cuda", dtype=torch.bfloat16)
    head.requires_grad_(requires_grad=False)
    hidden_SH = torch.randn(options.tokens, options.hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    targets_S = torch.randint(options.vocabulary, (options.tokens,), device="cuda")
    for name, apply_head in (
        *HEADS.items(),
        *HEADS.items(),
    ):  # twice, in turn: whatever else the machine does hits both
        pass_through(apply_head, head, hidden_SH, targets_S)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        started_s = time.perf_counter()
        for _ in range(options.repeats):
            pass_through(apply_head, head, hidden_SH, targets_S)
        torch.cuda.synchronize()
        taken_s = (time.perf_counter() - started_s) / options.repeats
        memory = torch.cuda.max_memory_allocated() - before
        print(f"{name:21} {taken_s * 1e3:7.1f} ms {memory / 2**30:6.2f} GiB")


if __name__ == "__main__":
    main()
