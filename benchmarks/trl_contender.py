"""TRL's GRPOTrainer on the task of benchmarks/vs_trl.py, in a separate process: it can be killed, and it may need
another Python.

    python trl_contender.py TASK_FILE RESULT_FILE

The tool loop, the batching and the update are TRL's own. What it is given is rstar2's: prompts to the token, the tool's
sandbox and the judge. TRL asks for a chat template; the one here puts nothing around a prompt, which is already
rendered, and rstar2's own separators around what a tool answers.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LORA_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CLIP_LOW, CLIP_HIGH, MAX_GRAD_NORM = 0.2, 0.28, 1.0
TURNS = r"""
{%- for message in messages -%}
  {%- if message.role == "assistant" -%}
    {{- message.content -}}
    {%- for call in message.tool_calls or [] -%}
      {{- "\n<tool_call>\n" -}}
      {{- {"name": call.function.name, "arguments": call.function.arguments} | tojson -}}
      {{- "\n</tool_call>" -}}
    {%- endfor -%}
    {{- end_of_turn -}}
  {%- elif message.role == "tool" -%}
    {{- before_user if messages[loop.index0 - 1].role != "tool" else "\n" -}}
    {{- "<tool_response>\n" + message.content + "\n</tool_response>" -}}
    {%- if loop.last or messages[loop.index].role != "tool" -%}{{- before_assistant -}}{%- endif -%}
  {%- else -%}
    {{- message.content -}}
  {%- endif -%}
{%- endfor -%}
"""
"""The chat template of a conversation that begins with a rendered prompt."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the measured steps did, all of them together."""

    step_s: list[float]
    """Wall clock of each, from the end of the step before to its own."""
    generate_s: float
    """The part of that until the rollouts were complete and graded, tools included."""
    num_trained: int
    """Rollouts that were generated, graded and trained on."""
    num_generated: int
    """Rollouts in all: more than were trained on where there is a choice."""
    num_sampled_tokens: int
    """The model's own."""
    num_response_tokens: int
    """With the tool's."""
    num_tool_calls: int
    reward: float
    """Mean over all rollouts."""

    @property
    def wall_s(self) -> float:
        return sum(self.step_s)

    @property
    def samples_per_s(self) -> float:
        return self.num_trained / self.wall_s

    @property
    def tokens_per_s(self) -> float:
        return self.num_sampled_tokens / self.wall_s

    def each(self, total: float) -> float:
        return total / self.num_generated


def config_of(task: Any) -> dict[str, Any]:
    """The settings of GRPOConfig. Settings that are not part of the task are the fastest that were found."""
    on_gpu = task.device == "cuda"
    num_samples = task.prompts_per_step * task.group_size
    config: dict[str, Any] = {
        "num_generations": task.group_size,
        "max_completion_length": task.max_response_tokens,
        "max_tool_calling_iterations": task.max_turns,
        "temperature": 1.0,
        "beta": 0.0,
        "num_iterations": 1,
        "loss_type": "dapo",
        "epsilon": CLIP_LOW,
        "epsilon_high": CLIP_HIGH,
        "learning_rate": task.lr,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": MAX_GRAD_NORM,
        "per_device_train_batch_size": task.trl_batch,
        "gradient_accumulation_steps": num_samples // task.trl_batch,
        "gradient_checkpointing": False,
        "bf16": on_gpu,
        # Weights of bfloat16 with no float32 copy: less work than rstar2's update does.
        "model_init_kwargs": {"dtype": "bfloat16" if on_gpu else "float32"},
        "use_cpu": not on_gpu,
        "optim": "adamw_torch_fused" if on_gpu else "adamw_torch",
        "max_steps": task.num_warm_up_steps + task.num_steps,
        "shuffle_dataset": False,
        "seed": task.seed,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "log_completions": False,
    }
    if task.generation == "vllm":
        config |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": task.context_tokens,
            # It would cost one more forward pass over the batch; rstar2 makes none either.
            "vllm_importance_sampling_correction": False,
            "generation_kwargs": {"stop_token_ids": task.stop_token_ids},
        }
    elif task.generation == "continuous":
        config |= {"use_transformers_continuous_batching": True}
    return config


def chat_template(chat: Any) -> str:
    texts = {
        "before_user": chat.before_user,
        "before_assistant": chat.before_assistant,
        "end_of_turn": chat.before_end + chat.end_of_turn,
    }
    return "".join(f"{{% set {name} = {json.dumps(text)} %}}" for name, text in texts.items()) + TURNS


def response_template(chat: Any) -> dict[str, Any]:
    """How a turn is read: TRL's template for Qwen3, without its thoughts."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": chat.before_assistant,
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": re.escape(chat.end_of_turn) + r"\s*", "content": "text"},
        },
    }


class Bench:
    """The sandbox that tool and judge share, on the loop of TRL's that calls them."""

    def __init__(self, task: Any, chat: Any) -> None:
        from rstar2.grading import Grader
        from rstar2.sandbox import Limits, LocalExecutor

        self.executor = LocalExecutor()
        self.limits = Limits()
        self.response_tokens: list[int] = []
        """The response tokens of each batch of rollouts."""
        self._faults: list[str] = []
        self._grader = Grader(self.executor, evaluated_only=True)
        self._chat = chat
        self._max_output_tokens = task.max_tool_output_tokens
        self._stop_token_ids = set(task.stop_token_ids)

    async def call(self, tool: Any, arguments: Mapping[str, Any]) -> str:
        from rstar2.agent.run_calls import cut
        from rstar2.errors import InfrastructureError
        from rstar2.records import Fault

        try:
            result = await tool.call(arguments)
        except InfrastructureError as error:
            self._faults.append(str(error))
            raise
        if result.fault is Fault.INFRASTRUCTURE:
            self._faults.append(result.text)
        return cut(self._chat.harmless(result.text), self._max_output_tokens, self._chat.tokenizer)[0]

    async def reward(
        self,
        completions: Sequence[Sequence[Mapping[str, Any]]],
        completion_ids: Sequence[Sequence[int]],
        answer: Sequence[str],
        environments: Sequence[Any] = (),
        **_: Any,
    ) -> list[float]:
        # TRL shows the model whatever a tool raises and continues; without a sandbox there is nothing to measure.
        assert not self._faults, f"the sandbox failed: {self._faults[0]}"
        self.response_tokens.append(sum(map(len, completion_ids)))
        await asyncio.gather(*(environment._close() for environment in environments))
        return await asyncio.gather(*map(self._reward_of, completions, completion_ids, answer))

    async def _reward_of(self, messages: Sequence[Mapping[str, Any]], token_ids: Sequence[int], answer: str) -> float:
        from rstar2.records import Verdict

        if token_ids[-1] not in self._stop_token_ids:
            return 0.0
        turns = [message["content"] for message in messages if message["role"] == "assistant"]
        return float((await self._grader.grade(*turns, gold=answer)).verdict is Verdict.RIGHT)


def tools_of(task: Any, bench: Bench) -> dict[str, Any]:
    """The tools as TRL takes them: a function, or an object for each rollout if the tool has state."""
    from rstar2.agent import JupyterTool, PythonTool

    async def execute_python_code_with_standard_io(code: str, input: str):  # type: ignore[no-untyped-def]
        """Execute Python code with standard input and capture standard output.

        Args:
            code: A string containing Python code to be executed.
            input: A string that will be provided as standard input to the code.
        """
        return await bench.call(PythonTool(bench.executor, bench.limits), {"code": code, "input": input})

    class Notebook:
        def __init__(self) -> None:
            self._tool = JupyterTool(bench.executor, bench.limits)

        def reset(self, **_: Any) -> None:
            """Its cells were closed when the last rollout was judged."""

        async def jupyter_code(self, code: str):  # type: ignore[no-untyped-def]
            """Run code in a Jupyter notebook and return what it prints.

            Args:
                code: The Python code of one cell.
            """
            return await bench.call(self._tool, {"code": code})

        async def _close(self) -> None:
            await self._tool.close()

    if task.tool == JupyterTool.schema.name:
        return {"environment_factory": Notebook}
    return {"tools": [execute_python_code_with_standard_io]}


def train(task: Any) -> dict[str, Any]:
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback

    from rstar2.agent import load_chat

    if task.num_threads:
        torch.set_num_threads(task.num_threads)
    chat = load_chat(Path(task.folder))
    tokenizer = AutoTokenizer.from_pretrained(task.folder)
    tokenizer.chat_template = chat_template(chat)
    tokenizer.response_template = response_template(chat)
    require_same_prompts(task, tokenizer)
    bench = Bench(task, chat)
    ends_s: list[float] = []
    generate_s: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            if task.device == "cuda":
                torch.cuda.synchronize()
            ends_s.append(time.perf_counter())

    class Timed(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            started_s = time.perf_counter()
            scored = super()._generate_and_score_completions(inputs)
            generate_s.append(time.perf_counter() - started_s)
            return scored

    config = config_of(task)
    lora = (
        LoraConfig(
            r=task.lora_rank, lora_alpha=2 * task.lora_rank, target_modules=list(LORA_MODULES), task_type="CAUSAL_LM"
        )
        if task.lora_rank
        else None
    )
    trainer = Timed(
        model=task.folder,
        args=trl.GRPOConfig(output_dir=task.output_folder, **config),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [
                {"prompt": [{"role": "user", "content": problem["prompt"]}], "answer": problem["answer"]}
                for problem in task.problems
            ]
        ),
        reward_funcs=bench.reward,
        peft_config=lora,
        callbacks=[Clock()],
        **tools_of(task, bench),
    )
    trainer.train()
    asyncio.run_coroutine_threadsafe(bench.executor.close(), trainer.async_loop).result()

    first = task.num_warm_up_steps
    num_samples = task.num_steps * task.prompts_per_step * task.group_size
    logs = [row for row in trainer.state.log_history if "tools/call_frequency" in row][first:]
    outcome = Outcome(
        step_s=[after - before for before, after in zip(ends_s[first - 1 :], ends_s[first:], strict=False)],
        generate_s=sum(generate_s[first:]),
        num_trained=num_samples,
        num_generated=num_samples,
        num_sampled_tokens=round(mean_of(logs, "completions/mean_length") * num_samples),
        num_response_tokens=sum(bench.response_tokens[first:]),
        num_tool_calls=round(mean_of(logs, "tools/call_frequency") * num_samples),
        reward=mean_of(logs, "reward"),
    )
    assert len(outcome.step_s) == len(logs) == task.num_steps
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    return {"outcome": asdict(outcome), "settings": config, "versions": versions}


def require_same_prompts(task: Any, tokenizer: Any) -> None:
    for problem in task.problems:
        conversation = [{"role": "user", "content": problem["prompt"]}]
        token_ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert token_ids == problem["prompt_ids"], "TRL would read another prompt than rstar2"


def mean_of(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def main() -> None:
    task_file, result_file = map(Path, sys.argv[1:])
    task = SimpleNamespace(**json.loads(task_file.read_text()))
    try:
        result = train(task)
    except Exception as error:
        said = str(error).splitlines() or [""]
        result_file.write_text(json.dumps({"error": f"{type(error).__name__}: {said[0]}"[:200]}))
        raise
    result_file.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
