"""Checkpoints: whole or not there, whatever happens while one is written."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rstar2.errors import InfrastructureError, UserError
from rstar2.train import checkpoint as module
from rstar2.train.checkpoint import Checkpoint, CheckpointFolder, load_tensors, save_tensors
from rstar2.train.cursor import Cursor
from rstar2.train.state import TrainState

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
MARK = {"metrics.jsonl": 12}
STATE = TrainState(
    sft_step=7,
    sft_is_done=True,
    stage_index=1,
    stage_step=2,
    steps_since_reset=2,
    step=9,
    cursor=Cursor(3, 4),
    problem_ids=("a", "b"),
    pending_evaluation="first",
    recent_rewards=(0.25, 0.5),
    best_reward=0.75,
    steps_without_signal=1,
)


def weights(step: int, size: int = 4) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), float(step))}


def save(folder: CheckpointFolder, step: int, *, keep: bool = False, size: int = 4) -> Path:
    state = TrainState(step=step)
    optimizer = {"adam": {"step": step}, "masters": []}
    return folder.save(state, weights=weights(step, size), optimizer=optimizer, recipe_digest="d", mark=MARK, keep=keep)


def latest(folder: CheckpointFolder) -> Checkpoint:
    found = folder.latest()
    assert found is not None
    return found


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", 2)
    assert folder.latest() is None
    optimizer = {"adam": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]}, "masters": []}
    folder.save(STATE, weights=weights(1), optimizer=optimizer, recipe_digest="digest", mark=MARK)
    found = latest(folder)
    assert (found.state, found.recipe_digest, found.mark) == (STATE, "digest", MARK)
    assert found.path.name == "000001-step-000009"
    loaded, loaded_optimizer = load_tensors(found, CPU)
    assert torch.equal(loaded["w"], weights(1)["w"])
    assert loaded_optimizer == optimizer


def test_a_new_stage_begins_with_nothing_of_the_last_but_the_policys_own() -> None:
    begun = STATE.next_stage()
    assert begun == TrainState(
        sft_step=7, sft_is_done=True, stage_index=2, steps_since_reset=2, step=9, pending_evaluation="first"
    )


def test_old_ones_are_dropped_but_not_those_that_end_a_stage(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 2)
    for step in range(1, 7):
        save(folder, step, keep=step in (2, 5))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{step:06d}-step-{step:06d}" for step in (2, 4, 5, 6)]
    assert latest(folder).state.step == 6


def test_a_kill_while_saving_or_dropping_leaves_no_folder_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    folder = CheckpointFolder(tmp_path, 1)
    save(folder, 1)
    for name in ("save_file", "_sync"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(Killed):
                save(folder, 2)
        assert latest(folder).state.step == 1
    save(folder, 2)

    def killed_half_way(path: Path, **_: Any) -> None:
        (path / "weights.safetensors").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", killed_half_way)
        with pytest.raises(Killed):
            save(folder, 3)
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["000003-step-000003"]
    save(folder, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["000004-step-000004"], "leftovers are swept"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_only_the_checkpoint_that_did_not_fit(small_disk: Path) -> None:
    folder = CheckpointFolder(small_disk / "checkpoints", 2)
    kept = save(folder, 1)
    for size in (
        10_000,
        40_000,
        60_000,
        100_000,
    ):  # Beside the first: too much at its tensors, or already at its weights.
        (small_disk / "filler").write_bytes(b"x" * 220_000)
        with pytest.raises(InfrastructureError, match=r"000001-step-000001, is whole: free some space"):
            folder.save(
                TrainState(step=2),
                weights=weights(2, size),
                optimizer={"adam": torch.zeros(60_000), "masters": []},
                recipe_digest="d",
                mark=MARK,
            )
        assert [path.name for path in (small_disk / "checkpoints").iterdir()] == [kept.name]
        loaded, _ = load_tensors(latest(folder), CPU)
        assert torch.equal(loaded["w"], weights(1)["w"])
    (small_disk / "filler").unlink()
    save(folder, 2)
    assert latest(folder).state.step == 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos")])
def test_a_save_that_fails_says_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any) -> None:
        raise error

    folder = CheckpointFolder(tmp_path / "checkpoints", 2)
    monkeypatch.setattr(module.torch, "save", fail)
    with pytest.raises(InfrastructureError, match="There is none before it"):
        save(folder, 1)
    monkeypatch.setattr(module, "save_file", fail)
    with pytest.raises(InfrastructureError, match=r"cannot write .*reference\.safetensors"):
        save_tensors(tmp_path / "reference.safetensors", weights(1))
    assert not list(tmp_path.glob("*.safetensors"))


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    for step in (1, 2, 3, 4):
        save(folder, step)
    newest = latest(folder).path
    (newest / "weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=rf"{newest.name} cannot be read.*remove it"):
        load_tensors(latest(folder), CPU)
    (newest / "state.json").write_text("{")
    with pytest.raises(UserError, match=rf"{newest.name} is damaged.*remove it"):
        folder.latest()
    for file in newest.iterdir():
        file.unlink()
    assert latest(folder).state.step == 3
    about = json.loads((latest(folder).path / "state.json").read_text())
    (latest(folder).path / "state.json").write_text(json.dumps(about | {"format_version": 2}))
    with pytest.raises(UserError, match=r"another version of rstar2 \(format 2\)") as error:
        folder.latest()
    assert "is damaged" not in str(error.value)
