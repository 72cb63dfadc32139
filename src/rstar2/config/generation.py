"""`[engine]`, `[agent]`, `[rollout]` and `[sandbox]`: what makes the tokens, how one conversation goes, how many run at
once, and where the model's programs run."""

from typing import Literal

from pydantic import Field

from rstar2.config.section import EngineName, PolicyName, Section
from rstar2.config.trees import TreeSection
from rstar2.extensions import ENGINES, POLICIES


class EngineSection(Section):
    """`[engine]`: who makes the tokens."""

    kind: EngineName = Field(
        "embedded",
        description=f"{ENGINES.describe()} Only the first two can train: embedded reads the trainer's own weights on "
        "one machine; vllm is started by the run and sent new weights after each step, only with [cluster].",
    )
    base_url: str | None = Field(
        None,
        min_length=1,
        description="Address of a running server with its /v1, for openai and vllm. The model's name is then one of "
        "the server's. Not for training.",
    )
    api_key_env: str | None = Field(
        None,
        min_length=1,
        description="Name of the environment variable that holds the server's key. Only with base_url.",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Folder of the tokenizer of the server's model. With it prompts and answers are token ids, and "
        "traces are exact. vllm needs it only if the server's model is no folder of this machine. Only with base_url.",
    )
    script: str | None = Field(
        None,
        min_length=1,
        description="Text file of replies, one for each turn, separated by lines of `===`. Only with scripted.",
    )
    kv_cache_tokens: int | None = Field(
        None,
        ge=1,
        description="Size of the KV cache of one engine, in tokens of all its rollouts together. If left out, it holds "
        "all rollouts of a step, as far as the trainer and gpu_memory_share leave room; on a CPU it must be given.",
    )
    gpu_memory_share: float = Field(
        0.6,
        gt=0,
        le=1,
        description="Share of one GPU's memory for the engine: with vllm for weights and KV cache, with embedded for "
        "the KV cache, as far as it is free. 0.6 leaves room for a trainer on the same GPU.",
    )
    max_batch: int = Field(
        1024,
        ge=1,
        description="Rollouts that one engine decodes in the same step. The default is high, because the KV cache is "
        "the real limit.",
    )
    prefill_chunk_tokens: int = Field(
        4096,
        ge=1,
        description="Prompt tokens prefilled in one step. Longer prompts are prefilled in chunks, so that running "
        "rollouts never wait long for a new one.",
    )
    batch_invariant: bool = Field(
        False,
        description="On one GPU, in bfloat16: engine and trainer use kernels whose reduction order does not depend on "
        "the batch, so that the trainer computes exactly the log-probabilities that a rollout was sampled with. "
        "Slower. On a CPU the engine is batch-invariant without it: in float32, and in bfloat16 where oneDNN packs "
        "it. Only with embedded.",
    )


class AgentSection(Section):
    """`[agent]`: how one conversation between the model and its tools goes."""

    template: Literal["model", "qwen"] = Field(
        "model",
        description="How a conversation becomes tokens. model: the chat template of the model's own tokenizer. qwen: "
        "the Qwen template of the report, for models that come without one.",
    )
    system_text: str | None = Field(
        None,
        description="The system text before the question, in place of the report's; the tool's schema follows it. If "
        "empty, there is no system turn at all, for a model that knows its one tool from the warm-up.",
    )
    tool_tags: Literal["token", "text"] | None = Field(
        None,
        description="How <tool_call> and the other tags of a call become tokens. token: as the tokenizer has them, one "
        "each where it knows them. text: spelled in ordinary tokens, for models that have a token for them which was "
        "never trained, such as Qwen2.5-Coder; adapters cannot teach it. If left out, the tags are as the model was "
        "trained, or else token.",
    )
    max_tool_output_tokens: int = Field(
        1024,
        ge=16,
        description="Tokens of one tool result that the model reads; of longer ones head and tail are kept. 1024 shows "
        "a complete traceback, and leaves the budget to reasoning.",
    )


class RolloutSection(Section):
    """`[rollout]`: many conversations at once, in training."""

    scheduler: PolicyName = Field(
        "kv-aware",
        description=f"How rollouts are placed on engines. {POLICIES.describe()} All but kv-aware are baselines.",
    )
    max_concurrent: int | None = Field(
        None,
        ge=1,
        description="Rollouts in flight at one time over all engines. If left out, the scheduler alone decides.",
    )
    num_workers: int | None = Field(
        None,
        ge=0,
        description="Processes of this machine that hold the conversations. With 0, the trainer's own process does. If "
        "left out, there is one for every two cores beside a GPU, at most 8, and none without a GPU. It has no effect "
        "on a cluster.",
    )
    max_prompt_tokens: int = Field(
        2048,
        ge=16,
        description="Longest prompt (system text, tool, problem) in tokens; a longer problem is refused when the data "
        "is loaded. With 30K of response it fills Qwen3's context of 32K exactly.",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="Sampling temperature in training. The report uses 1.0; other values train on another distribution "
        "than the one sampled from.",
    )
    max_fault_retries: int = Field(
        2,
        ge=0,
        description="How often a call or a turn that failed through our fault is retried before its rollout is left "
        "out of training.",
    )
    tree: TreeSection | None = Field(
        None, description="Rollouts as trees. If left out, every rollout begins at the prompt."
    )


MIB, GIB = 1 << 20, 1 << 30


class SandboxLimits(Section):
    """`[sandbox.limits]`: what one execution may use, all its child processes included."""

    wall_s: float = Field(
        10.0, gt=0, description="Wall-clock seconds. A usual calculation of a rollout takes well under one."
    )
    cpu_s: float = Field(
        10.0, gt=0, description="Seconds of processor time. The default equals wall_s: one busy core all the time."
    )
    memory_bytes: int = Field(1 * GIB, ge=1, description="Memory in bytes. 1 GiB holds numpy, scipy, sympy and pandas.")
    num_processes: int = Field(
        32, ge=1, description="Processes and threads at one time. Numerical libraries start a handful of threads."
    )
    output_bytes: int = Field(
        1 * MIB,
        ge=1,
        description="Bytes of stdout, of stderr and of the last value, each. The default is far above "
        "agent.max_tool_output_tokens, so that head and tail of long output are both there to show.",
    )
    file_bytes: int = Field(32 * MIB, ge=1, description="Largest single file in the scratch directory, in bytes.")


class SandboxSection(Section):
    """`[sandbox]`: what the model's programs may use, and where they run."""

    base_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Address of a running `rstar2 sandbox serve`. If left out, programs run on this machine's own "
        "cores.",
    )
    token_env: str | None = Field(
        None,
        min_length=1,
        description="Name of the environment variable that holds the service's bearer token; the token itself is never "
        "in a recipe. If left out, the token of this user's service on this machine is found. Only with base_url.",
    )
    num_slots: int | None = Field(
        None,
        ge=1,
        description="Programs younger than a tenth of a second that run at the same time on this machine; older ones "
        "get less of the cores and do not count. If left out, there are four for each core, so that a program that "
        "waits leaves no core idle. Not with base_url, where the service decides.",
    )
    packages: tuple[str, ...] = Field(
        (),
        strict=False,
        description="Installed packages that programs may import besides numpy, scipy, sympy, mpmath, networkx, pandas "
        "and matplotlib. Everything else in the environment is hidden. Not with base_url, where the service decides.",
    )
    queue_s: float = Field(
        120.0,
        gt=0,
        description="Seconds a program may wait for a free slot before the call counts as an infrastructure fault. The "
        "default is long, because a training step sends its calls in bursts.",
    )
    limits: SandboxLimits = Field(SandboxLimits(), description="What one execution may use.")
