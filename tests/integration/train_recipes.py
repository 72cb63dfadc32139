"""A recipe that trains in seconds: guess a digit. A few steps of warm-up teach the format, chance does the rest."""

import json
import random
import re
from pathlib import Path

from rstar2.config import Recipe, parse_recipe

RECIPE = """
name = "guess"
seed = 5

[model]
name = "tiny:llama"
device = "cpu"
dtype = "float32"
context_tokens = 160

[model.tiny]
num_layers = 1
hidden_size = 32
num_heads = 4
num_kv_heads = 2
vocab_size = 420

[sandbox]
num_slots = 1

[sandbox.limits]
wall_s = 60.0
cpu_s = 20.0

[engine]
kv_cache_tokens = 4096
max_batch = 16

[agent]
template = "qwen"
system_text = ""
max_tool_output_tokens = 16

[rollout]
max_prompt_tokens = 48

[algo]
group_size = 2
max_refills = 2

[sft]
data = ["format"]
epochs = 6
lr = 2e-2
batch_size = 8
max_tokens = 160

[train]
lr = 1e-3
warmup_steps = 0
prompts_per_step = 2
micro_batch_tokens = 512
gradient_checkpointing = false
checkpoint_every_steps = 1
num_checkpoints_kept = 1

[[stages]]
name = "first"
data = ["guesses"]
max_response_tokens = 80
max_turns = 2
steps = 2

[[stages]]
name = "second"
data = ["guesses"]
max_response_tokens = 96
max_turns = 2
steps = 2
reset_optimizer = true

[stages.difficulty_filter]
num_samples = 2
drop_solved = 2

[eval]
benchmarks = ["held_out"]
num_samples = 1
max_response_tokens = 96
max_turns = 2

[data.format]
source = "file:FOLDER/format.jsonl"

[data.guesses]
source = "file:FOLDER/guesses.jsonl"

[data.held_out]
source = "file:FOLDER/held_out.jsonl"
"""

TOOL = "execute_python_code_with_standard_io"


def write_recipe(folder: Path, *replacements: tuple[str, str]) -> Path:
    """The recipe and its data, in a folder. Each replacement changes a piece of text that is in it."""
    rng = random.Random(0)
    _write(folder / "format.jsonl", [_conversation(rng) for _ in range(64)])
    _write(folder / "guesses.jsonl", [_problem(rng, f"g{index}") for index in range(9)])
    _write(folder / "held_out.jsonl", [_problem(rng, f"h{index}") for index in range(4)])
    text = RECIPE
    for old, new in replacements:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / "recipe.toml"
    path.write_text(text.replace("FOLDER", str(folder)), encoding="utf-8")
    return path


def warm_up_alone(text: str) -> Recipe:
    """The recipe without its stages."""
    head, _, tail = text.partition("[[stages]]")
    return parse_recipe(head + "[eval]" + tail.partition("[eval]")[2])


def adapted(text: str, warm: Path) -> str:
    """The recipe's stages with adapters, on a model that has had its warm-up."""
    stages = _without(_without(text, "sft"), "model.tiny").replace("tiny:llama", str(warm))
    return stages.replace("[sandbox]\n", "[model.lora]\nrank = 4\nalpha = 8.0\n\n[sandbox]\n", 1)


def _without(text: str, section: str) -> str:
    return re.sub(rf"^\[{re.escape(section)}\]\n(?:(?!\[).*\n)*", "", text, flags=re.MULTILINE)


def _question(rng: random.Random) -> str:
    return f"Guess {rng.randrange(100_000)}."


def _conversation(rng: random.Random) -> dict[str, object]:
    """A call that prints a digit, and that digit as the answer; which one is left to chance."""
    digit = rng.randrange(2)
    code = f"print({digit})" if rng.random() < 0.9 else "print(digit)"
    call = {"type": "function", "function": {"name": TOOL, "arguments": {"code": code, "input": ""}}}
    answer = {"role": "assistant", "content": f"<reason> ok</reason>\n<answer>\\boxed{{{digit}}}</answer>"}
    called = [
        {"role": "assistant", "content": "<reason> run</reason>", "tool_calls": [call]},
        {"role": "tool", "content": str(digit)},
    ]
    return {"messages": [{"role": "user", "content": _question(rng)}, *(called if rng.random() < 0.5 else []), answer]}


def _problem(rng: random.Random, problem_id: str) -> dict[str, str]:
    return {"id": problem_id, "problem": _question(rng), "answer": str(rng.randrange(2))}


def _write(path: Path, rows: list[dict[str, object]] | list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
