"""`[algo]`, `[sft]` and `[train]`: GRPO-RoC, the warm-up before it, and the optimizer."""

from typing import Literal

from pydantic import Field

from rstar2.config.section import AdvantageName, Section, SelectionName
from rstar2.extensions import ADVANTAGES, SELECTIONS


class AlgoSection(Section):
    """`[algo]`: group relative policy optimization with resampling on correct."""

    group_size: int = Field(
        16,
        ge=2,
        description="Rollouts of one problem that are trained on, G. The report uses 16; a group of 1 would have no "
        "spread.",
    )
    oversample_factor: int = Field(
        2, ge=1, description="Rollouts sampled for each one kept. The report uses 2: 2G are sampled, G are kept."
    )
    selection: SelectionName = Field(
        "paper", description=f"Which of the sampled rollouts are kept. {SELECTIONS.describe()}"
    )
    advantage: AdvantageName = Field(
        "grpo",
        description=f"How much better than its group a kept rollout was. {ADVANTAGES.describe()} The report's is grpo.",
    )
    penalty: Literal["both", "errors", "format", "repetition"] = Field(
        "both",
        description="What weighs against a success in selection. both: the share of its tool calls that failed plus "
        "what its answer blocks lack in form, as in the report. errors, format: one of the two alone, to see what each "
        "of them does. repetition: both, plus the share of its runs of 16 tokens that it had written before; the "
        "report tried such a thing and gave it up, because it hurt honest checks. random and off use none.",
    )
    overlong_filtering: bool = Field(
        False,
        description="Leave truncated rollouts out, instead of counting them as wrong. The report tried it and gave it "
        "up: the model learnt to repeat itself.",
    )
    format_reward: float = Field(
        0.0,
        ge=0,
        description="What a rollout gets beside its reward if nothing is missing from its form (exactly one answer "
        "block, or what the environment says), right or wrong. The report warns of such rewards, and has none.",
    )
    penalty_epsilon: float = Field(
        0.1,
        gt=0,
        description="A success is kept with weight 1 / (penalty + this). At 0.1 a clean trace is six times as likely "
        "as one whose calls fail half the time; near 0 the choice is all but deterministic.",
    )
    success_threshold: float = Field(
        1.0,
        gt=0,
        description="The least reward of a success, where the environment gives a reward without a verdict; a verdict "
        "always decides itself. Selection, accuracy, pass@k and the difficulty filter all count successes so.",
    )
    clip_low: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="How far below 1 the probability ratio may fall before it is clipped. The default is the report's.",
    )
    clip_high: float = Field(
        0.28,
        gt=0,
        description="How far above 1 the ratio may rise before it is clipped. The default is the report's: higher than "
        "clip_low, so that rare tokens can gain and entropy lasts.",
    )
    clip_dual: float | None = Field(
        None,
        gt=1,
        description="The ratio beyond which a token of negative advantage is clipped too, whose loss would otherwise "
        "grow without bound; 3 is common. It matters with several optimizer steps a batch. The report names none.",
    )
    kl_coef: float = Field(
        0.0,
        ge=0,
        description="Weight of the KL term against the starting policy. The default of 0 means no such term, as in the "
        "report.",
    )
    tis_cap: float | None = Field(
        None,
        gt=0,
        description="Cap of the truncated importance weight that corrects for engine and trainer disagreeing about "
        "log-probabilities; 2 is common. If left out, there is no correction, as in the report.",
    )
    drop_equal_groups: bool = Field(
        True, description="Leave out groups whose kept rewards are all equal: their advantages are 0."
    )
    max_refills: int = Field(
        4,
        ge=0,
        description="How often a step may sample further problems in place of dropped groups and lost rollouts before "
        "it trains on what it has. 0 lets the batch shrink, as in the report; 4 ends a step on which nothing is ever "
        "solved.",
    )

    @property
    def num_sampled(self) -> int:
        """Rollouts sampled for one problem."""
        return self.group_size * self.oversample_factor


class SftSection(Section):
    """`[sft]`: supervised warm-up on conversations, before the first stage. If left out, there is none."""

    data: tuple[str, ...] = Field(
        strict=False,
        min_length=1,
        examples=[["format"]],
        description="Sets of conversations from [data], all of them together. The report uses tool calls, instructions "
        "and chat: format only, no reasoning.",
    )
    epochs: int = Field(3, ge=1, description="Passes over the data. The report uses 3.")
    lr: float = Field(5e-6, gt=0, description="Peak learning rate of AdamW, reached after warm-up, then cosine to 0.")
    warmup_share: float = Field(
        0.04, ge=0, lt=1, description="Share of the steps over which the learning rate rises. The report uses 4%."
    )
    batch_size: int = Field(128, ge=1, description="Conversations in one optimizer step. The report uses 128.")
    max_tokens: int = Field(
        8192, ge=16, description="Longest conversation in tokens; longer ones are left out and counted."
    )


class TrainSection(Section):
    """`[train]`: the optimizer of the reinforcement learning stages, and what is saved."""

    lr: float = Field(
        1e-6,
        gt=0,
        description="Learning rate of AdamW, constant after warm-up. The default is the report's.",
    )
    warmup_steps: int = Field(
        20,
        ge=0,
        description="Steps over which the learning rate rises, at the start and after each optimizer reset. The "
        "default is the report's.",
    )
    weight_decay: float = Field(
        0.01, ge=0, description="Decoupled weight decay of AdamW. The report names none; 0.01 is AdamW's own default."
    )
    max_grad_norm: float = Field(
        1.0,
        gt=0,
        description="Gradients are scaled down to this norm. 1.0 is the common choice; the report names none.",
    )
    prompts_per_step: int = Field(512, ge=1, description="Problems in one training step, each with its group.")
    optimizer_steps_per_batch: int = Field(
        1,
        ge=1,
        description="Optimizer steps on each batch of rollouts, each on its own part of the groups. 1 is on-policy; "
        "with more, the clip begins to bind.",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        description="Training steps by which the weights that sampled a rollout may be older than those it trains. 0 "
        "is on-policy. With 1 the next step's rollouts are sampled while this step's are trained on: on one machine "
        "with adapters, on a cluster in the separated layout.",
    )
    micro_batch_tokens: int | None = Field(
        None,
        ge=16,
        description="Tokens packed into one forward and backward pass; it bounds memory and does not change the "
        "gradient. It must hold the longest rollout. If left out, one GPU gets as many as its memory holds and its "
        "speed needs; a CPU and the ranks of a cluster get 16,384.",
    )
    gradient_checkpointing: bool | None = Field(
        None,
        description="Gradient checkpointing: recompute activations in the backward pass. It takes a third more time "
        "and far less memory. If left out, one GPU recomputes only if its memory is too small otherwise; a CPU and the "
        "ranks of a cluster recompute.",
    )
    checkpoint_every_steps: int = Field(
        10, ge=1, description="Steps between checkpoints; there is also one at the end of each stage."
    )
    num_checkpoints_kept: int = Field(
        2,
        ge=1,
        description="Newest checkpoints kept beside those that end a stage. With 2, one is intact if the other is "
        "damaged.",
    )
    stop_at_collapse: bool = Field(
        True,
        description="End the run, with a checkpoint and what was seen, when its watches (reward, entropy, gradient "
        "norm) say that the policy has collapsed.",
    )
    writers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = Field(
        (), strict=False, description="Where metrics go besides metrics.jsonl, which is always written."
    )
