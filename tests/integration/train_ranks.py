"""What ranks do in processes of their own, and what one process does alone, so that the two can be compared."""

import errno
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.tensor import DTensor

from rstar2.agent import ChatFormat, HfTokenizer
from rstar2.algo import LossSettings
from rstar2.config import Recipe
from rstar2.data.procedural import conversations
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.train.checkpoints.durable import CannotWrite
from rstar2.train.learning.rank import LearnerRank
from rstar2.train.learning.sft import SftSettings, render_all
from rstar2.train.learning.sft_examples import Example, conversation_texts
from rstar2.train.learning.update import Rollout, UpdateSettings
from rstar2.train.policy.policy import load_policy
from rstar2.train.sharding import shard_files as shards
from rstar2.train.sharding.fsdp import load_sharded_policy
from rstar2.train.sharding.ranks import ALONE, Ranks, joined

SIZES = TinySizes(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=400, context_tokens=256)
CONVERSATIONS = conversations("tool_format", 12, "ranks")
SFT = SftSettings(
    epochs=10, lr=3e-3, warmup_share=0.0, batch_size=5, micro_batch_tokens=256, max_grad_norm=1.0, stream="s"
)
UPDATE = UpdateSettings(
    LossSettings(), temperature=1.0, micro_batch_tokens=40, optimizer_steps_per_batch=1, max_grad_norm=1.0
)
LR = 3e-3
GRACE_S = 240.0

Values = list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to hold a policy."""

    model: Mapping[str, Any] | None = None
    train: Mapping[str, Any] | None = None
    cluster: Mapping[str, Any] | None = None

    def recipe(self, folder: Path) -> Recipe:
        model = {"name": str(folder), "device": "cpu", "dtype": "float32", "context_tokens": SIZES.context_tokens}
        cluster = {"num_nodes": 1, "gpus_per_node": 0, "num_trainer_ranks": 2, "num_engines": 1}
        return Recipe.model_validate(
            {
                "name": "ranks",
                "model": model | dict(self.model or {}),
                "train": {"gradient_checkpointing": False} | dict(self.train or {}),
                "cluster": cluster | dict(self.cluster or {}),
            }
        )


CASES = {
    "full": Case(),
    "recomputed": Case(train={"gradient_checkpointing": True}),
    "offloaded": Case(cluster={"cpu_offload": True}),
    "adapters": Case(model={"lora": {"rank": 3, "alpha": 6.0}}, train={"gradient_checkpointing": True}),
    "bfloat16": Case(model={"dtype": "bfloat16"}),
}


def build_model(folder: Path, architecture: str) -> None:
    build_tiny(folder, architecture, SIZES, conversation_texts(CONVERSATIONS), seed=3)


def make_learner(folder: Path, case: Case, ranks: Ranks) -> LearnerRank:
    recipe = case.recipe(folder)
    policy = load_policy(folder, recipe) if ranks is ALONE else load_sharded_policy(folder, recipe, ranks)
    return LearnerRank(policy, 0.01, ranks)


def make_examples(folder: Path) -> list[Example]:
    return render_all(CONVERSATIONS, ChatFormat.of(HfTokenizer.load(folder), ""), 10_000)[0]


def make_rollouts(num_rollouts: int) -> list[Rollout]:
    generator = torch.Generator().manual_seed(num_rollouts)
    rollouts = []
    for number in range(num_rollouts):
        length = 6 + int(torch.randint(14, (), generator=generator))
        ids = tuple(torch.randint(350, (length,), generator=generator).tolist())
        mask = (False, False, *(place % 5 != 0 for place in range(length - 2)))
        rollouts.append(Rollout(ids, mask, (-6.0,) * sum(mask), 1.0 if number % 2 else -0.7))
    return rollouts


def learn(learner: LearnerRank, folder: Path) -> Values:
    """Three steps of warm-up, then three updates: of several optimizer steps, of few packs, and of a single rollout,
    which leaves the second of two ranks with nothing."""
    examples, rollouts = make_examples(folder), make_rollouts(7)
    values = [learner.warm_up_step(examples, step, SFT, seed=step) for step in range(3)]
    pairs = [rollouts[start : start + 2] for start in range(0, 7, 2)]
    values.append(learner.update(pairs, replace(UPDATE, optimizer_steps_per_batch=2), LR, seed=3))
    values.append(learner.update([rollouts[:3]], replace(UPDATE, micro_batch_tokens=1), LR, seed=4))
    values.append(learner.update([rollouts[:1]], UPDATE, LR, seed=5))
    return values


def go_on(learner: LearnerRank) -> Values:
    """After a checkpoint: right only if weights and moments are."""
    return [learner.update([make_rollouts(5)], UPDATE, LR, seed=6), learner.update([make_rollouts(4)], UPDATE, LR, 7)]


def learn_towards_reference(learner: LearnerRank) -> Values:
    with_kl = replace(UPDATE, loss=LossSettings(kl_coef=0.5))
    return [learner.update([make_rollouts(5)], with_kl, LR, seed) for seed in range(3)]


def served(learner: LearnerRank) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.served_state()}


def num_held(learner: LearnerRank) -> int:
    """Numbers that this rank holds of the parameters."""
    held = (value.to_local() if isinstance(value, DTensor) else value for value in learner.policy.network.parameters())
    return sum(value.numel() for value in held)


# What ranks do together. Each gets the model, the ranks and a folder that they share.


def every_case(model: Path, ranks: Ranks, shared: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        learner = make_learner(model, case, ranks)
        num_before = num_held(learner)
        with counted_passes(learner) as count:
            values = learn(learner, model)
        found[name] = (values, served(learner), num_before, count[0])
        found[f"{name}_weights"] = learner.weights_id()
        learner.export(shared / f"exported-{name}")
        if name == "full":
            (shared / "by-two").mkdir(exist_ok=True)
            ranks.wait()
            learner.save(shared / "by-two")
        if name == "adapters":
            found["weights"] = weights_before_and_after(learner)
    continued = resumed(model, ranks, shared / "by-one")
    found["loaded"] = [continued.weights_id(), resumed(model, ranks, shared / "by-two").weights_id()]
    found["continued"] = (go_on(continued), served(continued))
    found["reference"] = [kept_reference(model, ranks, shared / "reference") for _ in range(2)]
    found["overflow"] = overflow(model, ranks)
    found["full_disk"] = full_disk(model, ranks, shared / "never")
    return found


def across_nodes(model: Path, ranks: Ranks, shared: Path) -> dict[str, Any]:
    """Two nodes of two ranks, sharded within each."""
    case = Case(cluster={"num_nodes": 2, "sharding": "node", "num_trainer_ranks": 4})
    learner = make_learner(model, case, ranks)
    found: dict[str, Any] = {"num_held": num_held(learner), "learnt": (learn(learner, model), served(learner))}
    (shared / "by-four").mkdir(exist_ok=True)
    ranks.wait()
    learner.save(shared / "by-four")
    found["continued"] = go_on(resumed(model, ranks, shared / "by-two", case))
    return found


def weights_before_and_after(learner: LearnerRank) -> list[str]:
    """Which weights: twice before an update, and after it."""
    before = [learner.weights_id(), learner.weights_id()]
    learner.update([make_rollouts(5)], UPDATE, LR, seed=8)
    return [*before, learner.weights_id()]


def resumed(model: Path, ranks: Ranks, checkpoint: Path, case: Case | None = None) -> LearnerRank:
    learner = make_learner(model, case or CASES["full"], ranks)
    learner.load(checkpoint)
    return learner


def kept_reference(model: Path, ranks: Ranks, path: Path) -> Values:
    learner = make_learner(model, CASES["full"], ranks)
    learner.hold_reference(path)
    return learn_towards_reference(learner)


def overflow(model: Path, ranks: Ranks) -> tuple[dict[str, float], bool]:
    """A gradient that is no number, on one rank: the metrics, and whether all weights stayed as they were."""
    learner = make_learner(model, CASES["full"], ranks)
    before = served(learner)
    first, *others = make_rollouts(6)
    values = learner.update([[replace(first, advantage=float("inf")), *others]], UPDATE, LR, seed=0)
    return values, all(torch.equal(tensor, before[name]) for name, tensor in served(learner).items())


def full_disk(model: Path, ranks: Ranks, folder: Path) -> str:
    """The last rank's disk is full; what each of them hears."""

    class Full(shards.FileSystemWriter):
        def write_data(self, *_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    learner = make_learner(model, CASES["full"], ranks)
    writer = shards.FileSystemWriter
    if ranks.rank == ranks.size - 1:
        shards.FileSystemWriter = Full  # type: ignore[misc]
    try:
        learner.save(folder)
    except CannotWrite as error:
        return str(error)
    finally:
        shards.FileSystemWriter = writer  # type: ignore[misc]
    return ""


@contextmanager
def counted_passes(learner: LearnerRank) -> Iterator[list[int]]:
    """How often the first layer was computed, as a list of one number."""
    count = [0]

    def add(*_: Any) -> None:
        count[0] += 1

    hook = learner.policy.network.model.layers[0].mlp.register_forward_pre_hook(add)
    yield count
    hook.remove()


Work = Callable[[Path, Ranks, Path], dict[str, Any]]


def on_ranks(work: Work, size: int, model: Path, shared: Path) -> list[dict[str, Any]]:
    """What each rank found. They are forks of one process that has everything imported, which is what takes long."""
    multiprocessing.set_forkserver_preload(
        ["rstar2.train.sharding.fsdp", "transformers.models.qwen3.modeling_qwen3", "peft"]
    )
    mp.start_processes(  # type: ignore[attr-defined]
        _run_rank, args=(size, work, model, shared), nprocs=size, start_method="forkserver"
    )
    return [torch.load(shared / f"found-{size}-{rank}.pt", weights_only=False) for rank in range(size)]


def _run_rank(rank: int, size: int, work: Work, model: Path, shared: Path) -> None:
    torch.set_num_threads(1)
    with joined(rank, size, f"file://{shared}/meeting-{size}", torch.device("cpu"), GRACE_S) as ranks:
        torch.save(work(model, ranks, shared), shared / f"found-{size}-{rank}.pt")
        ranks.wait()
    # Python 3.11 ends a communication thread that still wants the interpreter while it shuts down by a call that
    # aborts the process. Nothing is left to do, so it does not shut down.
    os._exit(0)
