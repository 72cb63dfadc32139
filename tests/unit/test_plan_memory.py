"""Shards, activations and what fits: counted on the meta device, against what torch really does."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plan_recipes import make_layout, make_model, make_recipe
from torch.autograd.graph import saved_tensors_hooks
from train_models import SIZES, build_model, make_policy

from rstar2.config import load_recipe
from rstar2.engine.embedded.options import choose_limits
from rstar2.errors import UserError
from rstar2.models import CATALOG
from rstar2.plan.activations import ActivationMeter, LiveBytes
from rstar2.plan.assumptions import Assumptions
from rstar2.plan.devices import DEVICE_NAMES, find_device
from rstar2.plan.generation import engine_model
from rstar2.plan.layout import Sharing
from rstar2.plan.memory import engine_memory
from rstar2.plan.meta_model import ModelPlan
from rstar2.plan.model_config import BUNDLED, find_config
from rstar2.plan.plan import make_plan
from rstar2.plan.shards import shard, unsharded
from rstar2.train.learning import forward as packed
from rstar2.train.memory.division import divide, largest
from rstar2.train.memory.need import GpuNeed
from rstar2.train.workbench import MAX_WORKERS, engine_options

pytestmark = pytest.mark.unit

CLUSTER = {"num_nodes": 2, "gpus_per_node": 3}


@pytest.mark.parametrize("sharding", ["full", "node"])
def test_the_parts_of_all_ranks_make_up_the_model_and_each_is_what_chunk_would_give(sharding: str) -> None:
    recipe = make_recipe(cluster={**CLUSTER, "sharding": sharding})
    model, layout = make_model(recipe, is_on_gpu=True), make_layout(recipe)
    parameters = dict(model.build(torch.float32).named_parameters())
    ranks = [shard(model, layout, rank) for rank in range(layout.num_ranks)]
    num_copies = layout.num_ranks // layout.ranks_per_shard
    assert sum(rank.num_local for rank in ranks) == num_copies * unsharded(model).num_local
    for name, parameter in parameters.items():
        # torch.chunk gives no empty pieces, FSDP2 does.
        chunks = [tuple(chunk.shape) for chunk in parameter.chunk(layout.ranks_per_shard)]
        chunks += [(0, *parameter.shape[1:])] * (layout.ranks_per_shard - len(chunks))
        assert [rank.shapes[name] for rank in ranks] == chunks * num_copies
    assert len({rank.num_held for rank in ranks}) == 1
    assert ranks[-1].num_local < ranks[-1].num_held, "these sizes do not divide, so the last rank is padded"


@pytest.mark.parametrize("engine", [{"gpu_memory_share": 0.3}, {"gpu_memory_share": 1.0}, {"kv_cache_tokens": 1000}])
@pytest.mark.parametrize(("name", "dtype"), [("h200", "bfloat16"), ("cpu", "float32"), ("cpu", "bfloat16")])
def test_a_cache_is_planned_as_the_engine_makes_it(
    name: str, dtype: str, engine: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, device = make_recipe(engine=engine, model={"dtype": dtype}), find_device(name)
    shape = make_model(recipe, is_on_gpu=device.is_gpu).shape()
    free_bytes = device.memory_bytes - int(shape.weight_bytes)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_bytes, device.memory_bytes))
    where = torch.device("cuda" if device.is_gpu else "cpu")
    value_bytes = 2 if device.is_gpu else 4
    token_bytes = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * value_bytes
    limits = choose_limits(engine_options(recipe), where, recipe.model.context_tokens, token_bytes)
    planned = engine_memory(recipe, make_layout(recipe, name), device, shape)
    assert planned.num_cache_tokens == limits.num_blocks * limits.block_size
    assert engine_model(recipe, device, shape).block_size == limits.block_size


def test_bundled_sizes_make_the_models_that_the_catalog_describes() -> None:
    recipe = load_recipe("smollm2-1gpu")
    for entry in CATALOG.values():
        model = ModelPlan.of(recipe, BUNDLED[entry.repo], is_on_gpu=True)
        assert model.shape().weight_bytes == 2 * entry.num_params, entry.name


def test_a_tiny_model_is_planned_with_the_sizes_that_it_is_built_with(tmp_path: Path) -> None:
    policy = make_policy(build_model(tmp_path / "model", "qwen3"))
    tiny = {field: getattr(SIZES, field) for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")}
    built = {name: tuple(parameter.shape) for name, parameter in policy.network.named_parameters()}
    vocab_size = policy.network.config.vocab_size
    recipe = make_recipe(model={"tiny": {**tiny, "vocab_size": vocab_size}})
    assert unsharded(make_model(recipe)).shapes == built


@pytest.mark.parametrize("is_checkpointed", [True, False])
@pytest.mark.parametrize("num_tokens", [60, 200])
def test_what_is_counted_on_meta_is_what_is_counted_on_a_cpu(
    num_tokens: int, is_checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.train.learning.forward.HEAD_PIECE_TOKENS", 64)
    model = make_model(make_recipe(train={"gradient_checkpointing": is_checkpointed}))
    assert ActivationMeter(model).measure(num_tokens) == ActivationMeter(model, "cpu").measure(num_tokens)


def test_bytes_that_stay_alive_after_a_layer_are_those_that_autograd_saves() -> None:
    model = make_model(make_recipe(train={"gradient_checkpointing": False})).build(torch.float32, num_layers=1)
    model.to_empty(device="cpu")
    hidden = torch.zeros(1, 100, 40, requires_grad=True)
    positions = torch.zeros(1, 100, dtype=torch.long)
    rotary = model.model.rotary_emb(hidden, positions)
    there_before = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *rotary, hidden)}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    live = LiveBytes()
    with live, saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model.model.layers[0](hidden, attention_mask=None, position_embeddings=rotary, position_ids=positions)
    kept_bytes = live.now_bytes
    saved_bytes = sum(storage.nbytes() for pointer, storage in saved.items() if pointer not in there_before)
    assert kept_bytes == saved_bytes + out.nbytes


def test_live_bytes_forget_what_nobody_holds() -> None:
    live = LiveBytes()
    with live:
        first = torch.ones(100)
        view = first[:10]
        del first
        assert live.now_bytes == 400, "a view holds its whole storage"
        second = view + 1
        del view
        assert live.now_bytes == second.nbytes
    assert live.peak_bytes() == 440
    assert live.peak_bytes(without=[second]) == 400


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_the_trainers_own_micro_batch_peaks_where_the_plan_says(tmp_path: Path, is_checkpointed: bool) -> None:
    policy = make_policy(build_model(tmp_path / "model", "qwen3"), gradient_checkpointing=is_checkpointed)
    num_tokens = SIZES.context_tokens
    mask = [False] + [True] * (num_tokens - 1)
    pack = packed.Pack.of([[1] * num_tokens], [mask], policy.device)
    live = LiveBytes()
    with live:
        log_probs, entropies = packed.token_log_probs(policy.network, pack)
        log_probs.sum().backward()
        del log_probs, entropies
    real_bytes = live.peak_bytes(without=[parameter.grad for parameter in policy.network.parameters()])
    tiny = {field: getattr(SIZES, field) for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads")}
    recipe = make_recipe(
        model={"tiny": {**tiny, "vocab_size": policy.network.config.vocab_size}},
        train={"gradient_checkpointing": is_checkpointed},
    )
    planned_bytes = ActivationMeter(make_model(recipe)).measure(num_tokens).total
    assert real_bytes == pytest.approx(planned_bytes, rel=0.08)


def test_the_head_of_a_gpu_holds_logits_and_their_gradient_alone() -> None:
    model = make_model(make_recipe(), is_on_gpu=True)
    logits_bytes = 512 * model.config.vocab_size * model.dtype.itemsize
    on_gpu, on_cpu = (ActivationMeter(replace(model, is_on_gpu=is_it)).measure(512).ends for is_it in (True, False))
    assert 2 * logits_bytes < on_gpu < 3 * logits_bytes < 6 * logits_bytes < on_cpu


def test_checkpointing_keeps_the_inputs_of_layers_alone() -> None:
    model = make_model(make_recipe(), is_on_gpu=True)
    kept = ActivationMeter(model).measure(512).kept_layers
    assert kept == (1 + model.num_layers) * 512 * 40 * model.dtype.itemsize
    assert ActivationMeter(replace(model, is_checkpointed=False)).measure(512).kept_layers > 5 * kept


@pytest.mark.parametrize(("name", "gives_back"), [("h200", False), ("rtx4090", True)])
def test_one_gpu_is_planned_as_the_trainer_divides_it(name: str, gives_back: bool) -> None:
    recipe = make_recipe(
        model={"name": "Qwen/Qwen2.5-Coder-1.5B-Instruct", "tiny": None, "lora": {"rank": 16}},
        train={"micro_batch_tokens": None, "prompts_per_step": 64},
        algo={"group_size": 16},
    )
    device = find_device(name)
    plan = make_plan(recipe, device, Assumptions(max_simulated_rollouts=64))
    need = GpuNeed.of(recipe, ModelPlan.of(recipe, find_config(recipe).values, is_on_gpu=True).config, 2)
    capacity_bytes = int(device.memory_bytes * 0.9)
    assert plan.division == divide(recipe, need, capacity_bytes, device.memory_bytes, MAX_WORKERS)
    assert plan.division.gives_cache_back is gives_back
    assert plan.fits
    (rank,) = plan.ranks
    train, generate = rank.phases
    assert ("KV cache" in train.parts, "KV cache" in generate.parts) == (not gives_back, True)
    assert train.total_bytes == need.fixed + plan.division.update_bytes + train.parts.get("KV cache", 0)
    assert rank.fits
    assert plan.micro_batch.num_tokens == plan.division.micro_batch_tokens
    assert plan.run_time is not None
    full_price = make_plan(recipe, device, Assumptions(mfu=0.01, max_simulated_rollouts=64))
    assert full_price.run_time is not None
    assert full_price.run_time.stages[0].mean.train_s > 10 * plan.run_time.stages[0].mean.train_s


@pytest.mark.parametrize("boundary", [256, 300, 4096, 5000, 100_000, 1 << 30])
def test_bisection_finds_the_boundary(boundary: int) -> None:
    found = largest(lambda number: number <= boundary, 256, 65_536)
    assert found == min(boundary // 256 * 256, 65_536)


def test_bisection_says_when_nothing_fits() -> None:
    assert largest(lambda number: number < 256, 256, 65_536) is None


def test_layouts_follow_the_recipe() -> None:
    assert make_layout(make_recipe()).sharing is Sharing.ONE_MODEL
    assert make_layout(make_recipe(cluster=CLUSTER)).sharing is Sharing.SIDE_BY_SIDE
    apart = make_layout(
        make_recipe(
            cluster={
                **CLUSTER,
                "layout": "separated",
                "num_trainer_ranks": 2,
                "num_engines": 4,
            },
            train={"max_staleness": 1},
            algo={"tis_cap": 2.0},
        )
    )
    assert (apart.num_ranks, apart.num_engines, apart.num_devices) == (2, 4, 6)
    assert apart.sharing is Sharing.APART
    assert apart.runs_ahead
    with pytest.raises(UserError, match="cannot be divided"):
        make_layout(make_recipe(cluster={**CLUSTER, "sharding": "node", "num_trainer_ranks": 5}))


def test_devices_are_known_by_name() -> None:
    assert all(find_device(name).memory_bytes > 1 << 30 for name in DEVICE_NAMES)
    with pytest.raises(UserError, match="--hardware gtx: known are mi300x"):
        find_device("gtx")


def test_a_model_without_sizes_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="not bundled, and the hub does not give them"):
        find_config(make_recipe(model={"name": "nobody/nothing", "tiny": None}))
    with pytest.raises(UserError, match="neither a model folder nor a name"):
        find_config(make_recipe(model={"name": "./nowhere", "tiny": None}))
