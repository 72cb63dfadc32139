"""What a user does wrong, and what a machine does: a sentence that names it, and everything that was saved is whole."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from train_recipes import write_recipe

from rstar2.config import load_recipe
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import RunDirectory, RunStatus, RunView
from rstar2.train import Observers, prepare_new, prepare_resumed, train
from rstar2.train.sharding.shard_files import stored_shapes

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]


async def start(folder: Path, sandbox_url: str, *replacements: tuple[str, str]) -> Path:
    """A run of the recipe in `folder`, to its end or to what is wrong with it."""
    recipe = write_recipe(folder, ("num_slots = 1", f'base_url = "{sandbox_url}"'), *replacements)
    run = folder / "run"
    await train(prepare_new(load_recipe(recipe), run), Observers())
    return run


async def test_a_full_disk_while_saving_costs_only_what_was_not_saved_yet(
    tmp_path: Path, sandbox_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, num_saved = FileSystemWriter.write_data, 0

    def full_at_the_third(*args: Any) -> Any:
        nonlocal num_saved
        num_saved += 1
        if num_saved == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args)

    monkeypatch.setattr(FileSystemWriter, "write_data", full_at_the_third)
    with pytest.raises(InfrastructureError, match=r"No space left.*000002-step-000001, is complete"):
        await start(tmp_path, sandbox_url)
    run = tmp_path / "run"
    assert RunView(run).status is RunStatus.FAILED
    prepared = prepare_resumed(run)
    assert prepared.checkpoint is not None and prepared.checkpoint.state.step == 1
    assert stored_shapes(prepared.checkpoint.path)
    await train(prepared, Observers())
    assert [row.step for row in RunView(run).metrics() if row.stage in ("first", "second")] == [1, 2, 3, 4]
    assert (run / "final" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="is finished: there is nothing to resume"):
        prepare_resumed(run)
    with pytest.raises(UserError, match="already holds a run"):
        await train(prepare_new(prepared.recipe, run), Observers())


UNSOLVABLE = ("max_refills = 2", "max_refills = 0"), ("guesses.jsonl", "never.jsonl")


def write_unsolvable(folder: Path) -> None:
    (folder / "never.jsonl").write_text('{"id": "n", "problem": "Guess.", "answer": "123456789"}\n')


async def test_a_run_that_never_solves_anything_warns_at_once_stops_in_whichever_stage_and_keeps_what_it_has(
    tmp_path: Path, sandbox_url: str
) -> None:
    write_unsolvable(tmp_path)
    with pytest.raises(UserError, match=r"stage second: the last 5 steps taught nothing.*no rollout is right") as error:
        await start(tmp_path, sandbox_url, *UNSOLVABLE, ("steps = 2", "steps = 3"))
    assert all(words in str(error.value) for words in ("easier problems", "[sft]", "pretrained model"))
    run = tmp_path / "run"
    assert RunView(run).info.note.startswith("UserError: stage second: the last 5 steps")
    warnings = [event for event in RunView(run).events() if event.kind == "no_signal"]
    assert [event.data for event in warnings] == [{"step": 1, "stage": "first"}]
    assert "a warm-up ([sft])" in warnings[0].message
    prepared = prepare_resumed(run)
    assert prepared.checkpoint is not None and prepared.checkpoint.state.step == 5

    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = (other / "recipe.toml").read_text()
    assert "lr = 0.001" in text
    (other / "recipe.toml").write_text(text.replace("lr = 0.001", "lr = 0.002"))
    with pytest.raises(UserError, match="was made by another recipe"):
        prepare_resumed(other)


async def test_a_run_too_short_for_that_has_not_succeeded_either(tmp_path: Path, sandbox_url: str) -> None:
    write_unsolvable(tmp_path)
    with pytest.raises(UserError, match="no step of the run taught anything"):
        await start(tmp_path, sandbox_url, *UNSOLVABLE)
    assert RunView(tmp_path / "run").status is RunStatus.FAILED
    assert not (tmp_path / "run" / "final").exists()


async def test_a_prompt_that_is_too_long_is_named_before_anything_is_trained(tmp_path: Path, sandbox_url: str) -> None:
    long = ("max_prompt_tokens = 48", "max_prompt_tokens = 16"), ("guesses.jsonl", "long.jsonl")
    (tmp_path / "long.jsonl").write_text(
        '{"id": "long", "problem": "Guess all of these numbers now.", "answer": "1"}\n'
    )
    with pytest.raises(UserError, match=r"problem 'long' has a prompt of \d+ tokens.*rollout\.max_prompt_tokens of 16"):
        await start(tmp_path, sandbox_url, *long)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("guesses.jsonl", "empty.jsonl", r"data set guesses is empty"),
        ("guesses.jsonl", "missing.jsonl", r"missing\.jsonl"),
        ("guesses.jsonl", "held_out.jsonl", r"every one of its 4 problems is evaluated on"),
        ("format.jsonl", "asked.jsonl", r"sft\.data: every one of its 1 conversations asks a question of a benchmark"),
        ("max_tool_output_tokens = 16", "max_tool_output_tokens = 90", r"used up by a single tool result"),
        (
            "[eval]",
            "[cluster]\nnum_nodes = 1\ngpus_per_node = 0\nnum_trainer_ranks = 1\nnum_engines = 1\n[eval]",
            r"\[cluster\]",
        ),
        ("kv_cache_tokens = 4096", 'kind = "vllm"', r"engine\.kind"),
        pytest.param(
            'device = "cpu"',
            'device = "cuda"',
            r"no CUDA GPU is visible here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU"),
        ),
    ],
)
def test_what_can_be_known_beforehand_is_said_beforehand(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    recipe = write_recipe(tmp_path, (old, new))
    (tmp_path / "asked.jsonl").write_text(json.dumps(conversation_about(tmp_path / "held_out.jsonl")) + "\n")
    with pytest.raises(UserError, match=said):
        prepare_new(load_recipe(recipe), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def conversation_about(problems: Path) -> dict[str, object]:
    """One that asks the first of them."""
    question = json.loads(problems.read_text().partition("\n")[0])["problem"]
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": "<answer>1</answer>"}]
    return {"messages": messages}


def test_a_warm_up_never_asks_what_is_evaluated(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path))
    conversations = tmp_path / "format.jsonl"
    conversations.write_text(
        conversations.read_text() + json.dumps(conversation_about(tmp_path / "held_out.jsonl")) + "\n"
    )
    curriculum = prepare_new(recipe, tmp_path / "run").curriculum
    assert (len(curriculum.conversations), curriculum.num_held_out_conversations) == (64, 1)
    evaluated = {problem.problem for problems in curriculum.benchmarks.values() for problem in problems}
    asked = {message["content"] for conversation in curriculum.conversations for message in conversation.messages}
    assert evaluated and not asked & evaluated


def test_two_processes_never_write_one_run(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    first = RunDirectory.create(tmp_path / "run", verb="train", recipe_toml=recipe.read_text())
    with first, pytest.raises(UserError, match="being written by another process"):
        prepare_resumed(tmp_path / "run")
    with RunDirectory.create(tmp_path / "eval", verb="eval", recipe_toml="") as run:
        pass
    with pytest.raises(UserError, match="a run of `rstar2 eval`"):
        prepare_resumed(run.path)
    with pytest.raises(UserError, match="not a run directory"):
        prepare_resumed(tmp_path)
