"""A plan's memory against torch's own tracker, which follows a real FSDP2 step, gathering and reducing included."""

import pytest
import torch
import torch.distributed._tools.fake_collectives  # lets collectives run on fake tensors
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import device_mesh
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from transformers import Qwen3ForCausalLM

from rstar2.config import Recipe
from rstar2.plan.activations import ActivationMeter, gpu_head
from rstar2.plan.devices import find_device
from rstar2.plan.layout import find_layout
from rstar2.plan.memory import engine_memory, train_phase, trainer_bytes
from rstar2.plan.meta_model import ModelPlan
from rstar2.plan.model_config import find_config
from rstar2.plan.shards import fake_ranks, shard
from rstar2.train.sharding.fsdp import shard_layers

pytestmark = pytest.mark.integration

NUM_TOKENS = 2048


def _recipe(is_checkpointed: bool) -> Recipe:
    tiny = {"num_layers": 6, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 2, "vocab_size": 8000}
    return Recipe.model_validate(
        {
            "name": "tracked",
            "model": {"name": "tiny:qwen3", "dtype": "bfloat16", "context_tokens": 4096, "tiny": tiny},
            "train": {"micro_batch_tokens": NUM_TOKENS, "gradient_checkpointing": is_checkpointed},
            "engine": {"kv_cache_tokens": 4096},
            "cluster": {"num_nodes": 1, "gpus_per_node": 8},
        }
    )


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_a_plan_is_never_below_what_fsdp_needs_and_not_far_above(
    is_checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = _recipe(is_checkpointed)
    device = find_device("h100")
    model, layout = ModelPlan.of(recipe, find_config(recipe).values, is_on_gpu=True), find_layout(recipe, device)
    shards = shard(model, layout, 0)
    trainer = trainer_bytes(shards, layout, model.dtype.itemsize, has_reference=False)
    engine = engine_memory(recipe, layout, device, model.shape())
    phase = train_phase(trainer, ActivationMeter(model).measure(NUM_TOKENS), engine, layout)
    # The tracker follows a first micro-batch: no gradients from earlier ones yet, no optimizer, no engine beside it.
    parts = ("parameters", "gathered parameters", "gradients", "activations")
    planned_bytes = sum(phase.parts[part] for part in parts) - trainer.gradients_kept

    tracked_bytes = _tracked(model, monkeypatch)
    assert tracked_bytes <= planned_bytes <= 1.3 * tracked_bytes


def _tracked(model: ModelPlan, monkeypatch: pytest.MonkeyPatch) -> int:
    def step(self: Qwen3ForCausalLM) -> Tensor:
        ids = torch.zeros(1, NUM_TOKENS, dtype=torch.long)
        masks = {"full_attention": None}
        out = self.model(input_ids=ids, position_ids=ids, use_cache=False, attention_mask=masks)
        return gpu_head(self.lm_head, out.last_hidden_state[0][ids[0]], ids[0], 1.0)[0]

    monkeypatch.setattr(Qwen3ForCausalLM, "forward", step)
    with fake_ranks(0, 8):
        mesh = device_mesh.init_device_mesh("cpu", (8,))
        with FakeTensorMode(allow_non_fake_inputs=True):
            network = model.build(torch.float32)
            shard_layers(network, mesh, model.dtype)
            network.to_empty(device="cpu")
            tracker = FSDPMemTracker(network)
            with tracker:
                network().sum().backward()
    peak: int = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    return peak
