"""`[engine]`, `[agent]` and `[rollout]`: who makes the tokens, how one conversation goes, and how many run at once."""

from typing import Literal

from pydantic import Field

from rstar2.config.section import Section


class Engine(Section):
    """`[engine]`: who makes the tokens."""

    kind: Literal["embedded", "vllm", "openai", "scripted"] = Field(
        "embedded",
        description="embedded: our own engine, CPU or GPU; on one machine it reads the trainer's very weights. vllm: "
        "vLLM, which training starts itself and sends new weights after each step, only with [cluster]. openai: any "
        "compatible server at base_url. scripted: the replies of a file. Only the first two can train.",
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
        description="Size of the KV cache of one engine, in tokens of all its rollouts together. Left out, what "
        "gpu_memory_share leaves room for; on a CPU, give it.",
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
        description="Rollouts that one engine decodes in the same step. High, since the KV cache is the real limit.",
    )
    prefill_chunk_tokens: int = Field(
        4096,
        ge=1,
        description="Prompt tokens read in one step. Longer prompts are read in pieces, so that running rollouts never "
        "wait long for a new one.",
    )


class Agent(Section):
    """`[agent]`: how one conversation between the model and its tool goes."""

    tool: Literal["execute_python_code_with_standard_io", "jupyter_code"] = Field(
        "execute_python_code_with_standard_io",
        description="The tool that the model is given. The first is the report's: a fresh program with its stdin at "
        "each call. jupyter_code is a notebook that keeps its variables between calls.",
    )
    template: Literal["model", "qwen"] = Field(
        "model",
        description="How a conversation becomes tokens. model: the chat template of the model's own tokenizer. qwen: "
        "the Qwen template of the report, for models that come without one.",
    )
    system_text: str | None = Field(
        None,
        description="What the model is told before the question, in place of the report's words; the tool's schema "
        "follows it. Empty, there is no system turn at all: for a model that knows its one tool from the warm-up.",
    )
    tool_tags: Literal["token", "text"] | None = Field(
        None,
        description="How <tool_call> and the other tags of a call become tokens. token: as the tokenizer has them, one "
        "each where it knows them. text: spelled in ordinary tokens, for models that have a token for them which was "
        "never trained, such as Qwen2.5-Coder; adapters cannot teach it. Left out, as the model was trained, else "
        "token.",
    )
    max_tool_output_tokens: int = Field(
        1024,
        ge=16,
        description="Tokens of one tool result that the model reads; of longer ones head and tail are kept. 1024 shows "
        "a whole traceback, and leaves the budget to reasoning.",
    )


class Rollout(Section):
    """`[rollout]`: many conversations at once, in training."""

    scheduler: Literal["kv-aware", "least-requests", "worst-case", "round-robin", "static"] = Field(
        "kv-aware",
        description="How rollouts are given to engines. kv-aware: as many as each KV cache is expected to hold, each "
        "staying where its cache is. least-requests, worst-case (full reservation), round-robin and static (even split "
        "up front) are the baselines that it is measured against.",
    )
    max_concurrent: int | None = Field(
        None,
        ge=1,
        description="Rollouts in flight at one time over all engines. Left out, the scheduler alone decides.",
    )
    num_workers: int | None = Field(
        None,
        ge=0,
        description="Processes of this machine that hold the conversations; 0: the trainer's own does. Left out, one "
        "for every two cores beside a GPU, at most 8, and none without. On a cluster it says nothing.",
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
        description="Sampling temperature in training. 1.0 is the report's; other values train on another distribution "
        "than the one sampled from.",
    )
    max_fault_retries: int = Field(
        2,
        ge=0,
        description="How often a call or a turn that failed through our fault is tried again before its rollout is "
        "left out of training.",
    )
