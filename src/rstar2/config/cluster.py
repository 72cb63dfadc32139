"""`[cluster]`: the same run on many machines."""

from typing import Literal

from pydantic import Field

from rstar2.config.section import Section


class ClusterSection(Section):
    """`[cluster]`: the same run on many machines. If left out, one process on this machine does it all."""

    num_nodes: int = Field(
        ge=1, examples=[1], description="Number of machines. Each also runs sandbox slots on its cores."
    )
    gpus_per_node: int = Field(
        ge=0,
        examples=[8],
        description="Number of GPUs of each machine; 0 is a cluster of CPUs, for trying things out.",
    )
    layout: Literal["colocated", "separated"] = Field(
        "colocated",
        description="colocated: the same GPUs generate and train in turns, on-policy. separated: each part has its own "
        "GPUs, and generation may run ahead of training (train.max_staleness).",
    )
    num_trainer_ranks: int | None = Field(
        None,
        ge=1,
        description="Processes that share the training. If left out, there is one for each GPU; it must be given if "
        "separated, or without GPUs.",
    )
    num_engines: int | None = Field(
        None,
        ge=1,
        description="Engines that generate. If left out, there is one for each GPU; it must be given if separated, or "
        "without GPUs.",
    )
    sharding: Literal["full", "node"] = Field(
        "full",
        description="How FSDP2 splits weights, gradients and optimizer. full: over all ranks, least memory. node: "
        "within each machine and copied across machines, less traffic between them.",
    )
    cpu_offload: bool = Field(
        False, description="Keep weights and optimizer in host memory between uses: fits larger models, slower."
    )

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node
