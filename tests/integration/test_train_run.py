"""Whole runs with what is off by default, and through the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sandbox_service import service_on_thread
from train_recipes import adapted, warm_up_alone, write_recipe
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.config import parse_recipe
from rstar2.records import RunStatus, RunView
from rstar2.train import Observers, prepare_new, prepare_resumed, train
from rstar2.train.checkpoints import checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]

EVERYTHING = (
    ("max_refills = 2", "max_refills = 2\nkl_coef = 0.05\ntis_cap = 2.0"),
    ("lr = 1e-3", "lr = 1e-2\noptimizer_steps_per_batch = 2"),
    ("gradient_checkpointing = false", "gradient_checkpointing = true"),
    ("num_samples = 1\n", "num_samples = 1\nevery_steps = 1\n"),
)


async def test_adapters_kl_importance_weights_and_more_optimizer_steps_survive_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, whole, stopped = tmp_path / "warm", tmp_path / "whole", tmp_path / "stopped"
    with service_on_thread() as sandbox:
        text = write_recipe(tmp_path, ("num_slots = 1", f'base_url = "{sandbox.url}"'), *EVERYTHING).read_text()
        await train(prepare_new(warm_up_alone(text), warm), Observers())
        recipe = parse_recipe(adapted(text, warm / "final"))
        await train(prepare_new(recipe, whole), Observers())
        finish, num_saved = checkpoint.CheckpointFolder.finish, 0

        def interrupted(*args: Any, **kwargs: Any) -> Path:
            nonlocal num_saved
            num_saved += 1
            if num_saved == 3:
                raise KeyboardInterrupt
            return finish(*args, **kwargs)

        monkeypatch.setattr(checkpoint.CheckpointFolder, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            await train(prepare_new(recipe, stopped), Observers())
        assert RunView(stopped).status is RunStatus.INTERRUPTED
        await train(prepare_resumed(stopped), Observers())
    rows = {row.step: row.values for row in RunView(whole).metrics() if row.stage in ("first", "second")}
    assert list(rows) == [1, 2, 3, 4]
    for name in ("reference_kl", "mismatch", "tis_capped_share", "clip_high_share", "entropy", "grad_norm"):
        assert all(name in values for values in rows.values()), name
    assert (rows[1]["mismatch"] or 0) < 1e-3, "engine and trainer agree"
    assert (rows[4]["reference_kl"] or 0) > 0
    evaluated, again = (
        [(row.step, row.stage) for row in RunView(run).metrics() if "eval:" in row.stage] for run in (whole, stopped)
    )
    assert evaluated == again
    assert [step for step, _ in evaluated] == [1, 2, 3, 4]
    base, final, other = (load_file(run / "final" / "model.safetensors") for run in (warm, whole, stopped))
    assert final.keys() == other.keys() == base.keys(), "adapters are merged"
    assert all(torch.equal(final[name], other[name]) for name in final)
    assert torch.equal(final["model.embed_tokens.weight"], base["model.embed_tokens.weight"])
    assert not torch.equal(final["model.layers.0.mlp.up_proj.weight"], base["model.layers.0.mlp.up_proj.weight"])


def test_the_command_line_trains_is_interrupted_goes_on_and_says_where_all_is(tmp_path: Path) -> None:
    recipe, run = write_recipe(tmp_path), tmp_path / "run"
    command = [sys.executable, "-m", "rstar2", "train", str(recipe), "--run", str(run), "--threads", "1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    ) as process:
        try:
            deadline_s = time.monotonic() + 200
            while not (run / "traces" / "step-000001.jsonl").is_file():
                assert process.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGTERM)  # as systemd does: to its children as well
            _, said = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 143, said
    assert f"to resume: rstar2 train --resume {run}" in said
    assert said.endswith("interrupted by SIGTERM\n")
    assert RunView(run).status is RunStatus.INTERRUPTED

    result = CliRunner().invoke(app, ["train", "--resume", str(run), "--threads", "1"])
    assert result.exit_code == 0, result.output
    assert f"model:  {run / 'final'}\nreport: {run / 'report.html'}\n" in result.stdout
    for stage in ("sft", "first", "second"):
        assert f"held-out accuracy after {stage}/held_out: " in result.stdout
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")
    assert json.loads((run / "final" / "config.json").read_text())["model_type"] == "llama"
    assert (run / "final" / "tokenizer.json").is_file()
    assert RunView(run).status is RunStatus.FINISHED
