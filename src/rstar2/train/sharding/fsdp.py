"""A policy whose weights, gradients and optimizer are split over ranks (FSDP2).

Invariant: no rank ever holds more of the model than its shards and the one layer that it computes with. The network is
built without memory, sharded, and only then filled: each rank reads its own rows out of the safetensors files, which
neither the first rank's memory nor the network between the ranks has to carry. Gradients are summed over the ranks, not
averaged, because each rank's loss is already its share of one mean.
"""

from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from rstar2.config import Recipe
from rstar2.engine.embedded.options import choose_device
from rstar2.errors import UserError
from rstar2.train.learning.forward import Pack, token_log_probs, use_packed_attention
from rstar2.train.policy.adapters import adapter_settings, add_adapters, first_adapter
from rstar2.train.policy.policy import Policy, compute_dtype, require_context, use_gradient_checkpointing
from rstar2.train.sharding.ranks import Ranks
from rstar2.train.sharding.shard_files import quiet

FORWARD = "token_log_probs"


def load_sharded_policy(folder: Path, recipe: Recipe, ranks: Ranks) -> Policy:
    """Loads this rank's part of the model in the folder. All ranks must call it, inside the process group that they
    joined."""
    device = choose_device(recipe.model.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    dtype = compute_dtype(recipe, device)
    network = _without_memory(folder, recipe, dtype)
    shard(network, make_mesh(recipe, ranks, device.type), recipe, dtype)
    _fill(network, folder, recipe, device)
    use_packed_attention(network)
    network.eval()
    use_gradient_checkpointing(network, recipe)
    adapters = None if recipe.model.lora is None else adapter_settings(recipe)
    return Policy(network, None, device, dtype, adapters, _forward=_forward, _settle=network.reshard)


def make_mesh(recipe: Recipe, ranks: Ranks, device_type: str) -> DeviceMesh:
    """A mesh with all ranks in one row or, if sharded within nodes, one row for each node. A node's ranks must be
    consecutive."""
    cluster = recipe.cluster
    if cluster is None or cluster.sharding == "full" or cluster.num_nodes == 1:
        return init_device_mesh(device_type, (ranks.size,), mesh_dim_names=("shard",))
    num_on_node, num_left = divmod(ranks.size, cluster.num_nodes)
    if num_left or not num_on_node:
        raise UserError(
            f'cluster.sharding is "node", but {ranks.size} trainer ranks do not divide evenly over '
            f'{cluster.num_nodes} nodes: change cluster.num_trainer_ranks, or set cluster.sharding to "full"'
        )
    return init_device_mesh(device_type, (cluster.num_nodes, num_on_node), mesh_dim_names=("copy", "shard"))


def shard(network: Any, mesh: DeviceMesh, recipe: Recipe, dtype: torch.dtype) -> None:
    """Shards the network over the ranks, and adds a forward method that gathers the shards."""
    is_offloaded = recipe.cluster is not None and recipe.cluster.cpu_offload
    shard_layers(network, mesh, dtype, is_offloaded=is_offloaded)
    # The head is applied piece by piece outside the network's own `forward`, on weights that must be gathered for it.
    setattr(network, FORWARD, MethodType(token_log_probs, network))
    register_fsdp_forward_method(network, FORWARD)


def shard_layers(network: Any, mesh: DeviceMesh, dtype: torch.dtype, *, is_offloaded: bool = False) -> None:
    """Shards layer by layer, so that a rank gathers one layer at a time; other parameters are sharded with the
    network."""
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if is_offloaded else OffloadPolicy()
    for module in (*network.model.layers, network):
        sharded: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=offload)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _forward(network: Any, pack: Pack, *, temperature: float) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = getattr(network, FORWARD)(pack, temperature=temperature)
    return found


def _without_memory(folder: Path, recipe: Recipe, dtype: torch.dtype) -> Any:
    """The network without memory. Trained weights are float32, because the optimizer updates them; frozen ones have the
    dtype that they compute in."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise UserError(f"model: there is no config.json in {folder}: give a Hugging Face model folder")
    config: Any = AutoConfig.from_pretrained(folder)
    require_context(config, recipe)
    make: Any = AutoModelForCausalLM.from_config
    with torch.device("meta"):
        network = make(config, dtype=torch.float32 if recipe.model.lora is None else dtype)
    return network if recipe.model.lora is None else add_adapters(network, recipe)


def _fill(network: Any, folder: Path, recipe: Recipe, device: torch.device) -> None:
    is_offloaded = recipe.cluster is not None and recipe.cluster.cpu_offload
    network.to_empty(device=torch.device("cpu") if is_offloaded else device)
    network.tie_weights()
    rotary = network.model.rotary_emb
    network.model.rotary_emb = type(rotary)(rotary.config).to(device)
    stored: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and ".lora_" in name:
            _put(parameter, first_adapter(name, parameter.shape, recipe.seed))
        else:
            stored[name.replace(".base_layer.", ".")] = parameter.detach()
    try:
        with quiet():
            load(stored, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    except Exception as error:
        raise UserError(f"model: the weights in {folder} do not fill it ({error}): get the model again") from error


def _put(parameter: Tensor, value: Tensor) -> None:
    assert isinstance(parameter, DTensor)
    with torch.no_grad():
        mine = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(mine.to_local())
