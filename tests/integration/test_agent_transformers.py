"""What is trained here, asked by `transformers` alone: the folder says all that is needed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from train_recipes import write_recipe
from transformers import AutoModelForCausalLM, AutoTokenizer

from rstar2.agent import PythonTool
from rstar2.agent.parse import parse_calls
from rstar2.config import parse_recipe
from rstar2.grading import extract_answer
from rstar2.models import get_model, resolve
from rstar2.records import RunView, Trace, Turn
from rstar2.sandbox import Sandbox
from rstar2.train import Observers, prepare_new, train
from rstar2.train.checkpoints.export_checkpoint import export_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

SCHEMA = PythonTool.schema


async def test_a_run_s_own_conversations_have_the_ids_that_they_were_trained_with(tmp_path: Path) -> None:
    run = tmp_path / "run"
    await train(prepare_new(parse_recipe(write_recipe(tmp_path).read_text()), run), Observers())
    view, folders = RunView(run), (run / "final", export_checkpoint(run))
    traces = [trace for step in view.trace_steps() for trace in view.traces(step)]
    assert any(len(trace.turns) > 1 for trace in traces)
    for tokenizer in map(AutoTokenizer.from_pretrained, folders):
        for trace in traces:
            question = question_of(trace)
            assert tuple(prompt_ids(tokenizer, [question])) == trace.prompt_ids
            for num_turns in range(len(trace.turns)):
                before = trace.turns[:num_turns]
                seen = trace.prompt_text + "".join(earlier.text + earlier.appended_text for earlier in before)
                assert tokenizer.decode(prompt_ids(tokenizer, [question, *history(before)])) == seen


def question_of(trace: Trace) -> dict[str, Any]:
    content = trace.prompt_text.removeprefix("<|im_start|>user\n").partition("<|im_end|>")[0]
    return {"role": "user", "content": content}


def history(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        messages.append({"role": "assistant", "content": "<reason>" + turn.text.removesuffix("<|im_end|>")})
        messages += [{"role": "tool", "content": result.text} for result in turn.results]
    return messages


def prompt_ids(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    tools = [SCHEMA.as_function()]
    return list(tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"])


@pytest.fixture(scope="module")
def agent() -> tuple[Any, Any]:
    """The model and the tokenizer, as anybody loads them."""
    get_model("smollm2-135m")
    folder = resolve("smollm2-135m-agent")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 48271 * 69621?", "3360675291"),
        ("What is the greatest common divisor of 36036 and 23100?", "924"),
    ],
)
def test_the_agent_that_comes_with_the_package_solves_problems(
    agent: tuple[Any, Any], question: str, answer: str
) -> None:
    model, tokenizer = agent
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    said = continued(model, tokenizer, messages)
    (call,) = parse_calls(said, {SCHEMA.name: SCHEMA})
    assert call.error is None, said
    with Sandbox() as sandbox:
        printed = sandbox.run(call.call.arguments["code"]).stdout.removesuffix("\n")
    assert printed == answer
    messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": printed}]
    assert extract_answer(continued(model, tokenizer, messages)) == answer


def continued(model: Any, tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    ids = prompt_ids(tokenizer, messages)
    with torch.inference_mode():
        made = model.generate(torch.tensor([ids]), max_new_tokens=200, do_sample=False)[0, len(ids) :]
    return str(tokenizer.decode(made, skip_special_tokens=True))
