"""Checkpoints: whole or not there, whatever happens while one is written."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from rstar2.errors import InfrastructureError, UserError
from rstar2.train.checkpoints import checkpoint as module
from rstar2.train.checkpoints.checkpoint import Checkpoint, CheckpointFolder, write_errors
from rstar2.train.seeds import Cursor
from rstar2.train.sharding.ranks import ALONE
from rstar2.train.sharding.shard_files import read_shards, write_shards
from rstar2.train.state import TrainState

pytestmark = pytest.mark.unit

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
    older_weights=("0a",),
)


def weights(step: int, size: int = 4) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), float(step))}


async def save(folder: CheckpointFolder, state: TrainState, *, keep: bool = False, size: int = 4) -> Path:
    async with folder.saving(state) as unfinished:
        write_shards(unfinished, weights(state.step, size), ALONE)
        return folder.finish(unfinished, state, recipe_digest="digest", mark=MARK, keep=keep)


def read(checkpoint: Checkpoint) -> torch.Tensor:
    tensor = torch.zeros(4)
    read_shards(checkpoint.path, {"w": tensor}, ALONE)
    return tensor


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def latest(folder: CheckpointFolder) -> Checkpoint:
    found = folder.latest()
    assert found is not None
    return found


async def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", 2)
    assert folder.latest() is None
    await save(folder, STATE)
    found = latest(folder)
    assert (found.state, found.recipe_digest, found.mark) == (STATE, "digest", MARK)
    assert found.path.name == "000001-step-000009"
    assert torch.equal(read(found), weights(9)["w"])


def test_a_new_stage_begins_with_nothing_of_the_last_but_the_policys_own() -> None:
    begun = STATE.next_stage()
    assert begun == TrainState(
        sft_step=7,
        sft_is_done=True,
        stage_index=2,
        steps_since_reset=2,
        step=9,
        pending_evaluation="first",
        steps_without_signal=1,
    )


async def test_old_ones_are_dropped_but_not_those_that_end_a_stage(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 2)
    for step in range(1, 7):
        await save(folder, TrainState(step=step), keep=step in (2, 5))
    assert names(tmp_path) == [f"{step:06d}-step-{step:06d}" for step in (2, 4, 5, 6)]
    assert latest(folder).state.step == 6


async def test_a_kill_while_saving_or_dropping_leaves_no_folder_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    folder = CheckpointFolder(tmp_path, 1)
    await save(folder, TrainState(step=1))
    for name in ("sync_tree", "sync"):
        with monkeypatch.context() as patch:

            def killed(*_: Any, patch: pytest.MonkeyPatch = patch) -> None:
                patch.setattr(module.shutil, "rmtree", lambda *_, **__: None)  # The dead clean up nothing.
                raise Killed

            patch.setattr(module, name, killed)
            with pytest.raises(Killed):
                await save(folder, TrainState(step=2))
        last_step = 1 if name == "sync_tree" else 2
        assert latest(folder).state.step == last_step
        assert torch.equal(read(latest(folder)), weights(last_step)["w"])

    def killed_half_way(path: Path, **_: Any) -> None:
        (path / ".metadata").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", killed_half_way)
        with pytest.raises(Killed):
            folder._drop_old()
    assert [name for name in names(tmp_path) if name[0] != "."] == ["000002-step-000002"]
    await save(folder, TrainState(step=4))
    assert names(tmp_path) == ["000003-step-000004"], "leftovers are swept"


async def test_a_full_disk_costs_only_the_checkpoint_that_did_not_fit(small_disk: Path) -> None:
    folder = CheckpointFolder(small_disk / "checkpoints", 2)
    kept = await save(folder, TrainState(step=1))
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    # With room for nothing, for a part of the tensors, for the tensors but not for what is written after them.
    for room, size in ((0, 10), (20_000, 10_000), (100_000, 100_000), (8_192, 10)):
        (small_disk / "filler").write_bytes(b"x" * (free - room))
        with pytest.raises(InfrastructureError, match=r"No space left.*000001-step-000001, is complete: free"):
            await save(folder, TrainState(step=2), size=size)
        assert names(small_disk / "checkpoints") == [kept.name]
        assert torch.equal(read(latest(folder)), weights(1)["w"])
    (small_disk / "filler").unlink()
    await save(folder, TrainState(step=2))
    assert latest(folder).state.step == 2


async def test_a_save_that_fails_says_what_is_left(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 2)
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(InfrastructureError, match=r"No space left.*There is none before it"):
        async with folder.saving(STATE) as unfinished:
            (unfinished / "half").touch()
            raise full
    assert not names(tmp_path)
    lost = InfrastructureError("a rank died")
    with pytest.raises(InfrastructureError) as error:
        async with folder.saving(STATE):
            raise lost
    assert error.value is lost, "what is no fault of the disk is not blamed on it"
    assert not names(tmp_path)
    with (
        pytest.raises(InfrastructureError, match=r"cannot write .*final: .*No space left"),
        write_errors(Path("final")),
    ):
        raise full


async def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_there(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, 3)
    for step in (1, 2, 3, 4):
        await save(folder, TrainState(step=step))
    newest = latest(folder).path
    for name in ("__0_0.distcp", ".metadata"):
        (newest / name).write_bytes(b"nonsense")
        with pytest.raises(UserError, match=rf"{newest.name} cannot be read.*remove it") as error:
            read(latest(folder))
        assert "Traceback" not in str(error.value)
    (newest / "state.json").write_text("{")
    with pytest.raises(UserError, match=rf"{newest.name} is damaged.*remove it"):
        folder.latest()
    for file in newest.iterdir():
        file.unlink()
    assert latest(folder).state.step == 3
    about = json.loads((latest(folder).path / "state.json").read_text())
    (latest(folder).path / "state.json").write_text(json.dumps(about | {"format_version": 1}))
    with pytest.raises(UserError, match=r"another version of rstar2 \(format 1\)") as error:
        folder.latest()
    assert "is damaged" not in str(error.value)
