"""A whole run on two machines: the numbers of one process, through everything that may die in the middle of a step."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cluster_runs import (
    NUM_STEPS,
    Watcher,
    assert_like,
    losses,
    processes,
    send,
    write_cluster_recipe,
    write_solo_recipe,
)

from rstar2.cluster.run import train_on_cluster
from rstar2.config import load_recipe
from rstar2.errors import InfrastructureError
from rstar2.records import RunView
from rstar2.records.rewind import superseded_traces
from rstar2.records.run_layout import RunLayout
from rstar2.train import prepare_new, prepare_resumed, train
from rstar2.train.run import check_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.usefixtures("address")]

MID_STEP = 2
ACTORS = ("EngineActor", "RankActor", "SandboxActor")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recipe in one process."""
    folder = tmp_path_factory.mktemp("reference")
    recipe = load_recipe(write_solo_recipe(folder))
    asyncio.run(train(prepare_new(recipe, folder / "run"), Watcher()))
    return folder / "run"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of a run that has ended: no engine, not even one that hung, no rank and no sandbox."""
    yield
    deadline_s = time.monotonic() + 60
    while left := {actor: found for actor in ACTORS if (found := processes(actor))}:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


async def run_on_cluster(folder: Path, watcher: Watcher, *changes: tuple[str, str], silence_s: float = 60.0) -> Path:
    recipe = load_recipe(write_cluster_recipe(folder, *changes))
    run = folder / "run"
    await train_on_cluster(prepare_new(recipe, run, check_cluster), watcher, silence_s=silence_s)
    return run


async def test_a_run_on_a_cluster_has_the_losses_of_one_process(reference: Path, tmp_path: Path) -> None:
    watcher = Watcher()
    assert_like(await run_on_cluster(tmp_path, watcher), reference)
    assert not [said for said in watcher.said if "disconnected" in said or "lost" in said]


async def test_an_engine_that_is_killed(reference: Path, tmp_path: Path) -> None:
    watcher = Watcher(send("EngineActor", signal.SIGKILL), at_step=MID_STEP)
    assert_like(await run_on_cluster(tmp_path, watcher), reference)
    assert watcher.has_acted and any(
        "has disconnected: its rollouts continue elsewhere" in said for said in watcher.said
    )


async def test_an_engine_that_hangs(reference: Path, tmp_path: Path) -> None:
    watcher = Watcher(send("EngineActor", signal.SIGSTOP), at_step=MID_STEP)
    assert_like(await run_on_cluster(tmp_path, watcher, silence_s=5.0), reference)
    assert watcher.has_acted and any("has sent nothing for 5 s" in said for said in watcher.said)


async def test_a_sandbox_node_that_is_killed(reference: Path, tmp_path: Path) -> None:
    watcher = Watcher(send("SandboxActor", signal.SIGKILL), at_step=MID_STEP)
    run = await run_on_cluster(tmp_path, watcher)
    assert_like(run, reference)
    assert watcher.has_acted and any("its calls are rerun elsewhere" in said for said in watcher.said)


async def test_a_rank_that_is_killed(reference: Path, tmp_path: Path) -> None:
    watcher = Watcher(send("RankActor", signal.SIGKILL), at_step=MID_STEP)
    run = await run_on_cluster(tmp_path, watcher)
    assert_like(run, reference)
    assert watcher.has_acted and any("resumes from its last checkpoint" in said for said in watcher.said)
    assert_rollouts_were_reused(run, MID_STEP + 1)


def assert_rollouts_were_reused(run: Path, step: int) -> None:
    """What had ended before the interruption is in the run as it was, to the microsecond that it took."""
    earlier = superseded_traces(RunLayout(run), step)
    finished = {trace.id: trace for trace in RunView(run).traces(step)}
    assert len(earlier) >= 3
    assert all(finished[trace_id] == trace for trace_id, trace in earlier.items() if trace.step == step)


def test_a_driver_that_is_killed(address: str, reference: Path, tmp_path: Path) -> None:
    recipe, run = write_cluster_recipe(tmp_path), tmp_path / "run"
    command = [sys.executable, "-m", "rstar2", "train", str(recipe), "--run", str(run), "--cluster", address]
    log = tmp_path / "log"
    with log.open("wb") as output, subprocess.Popen(command, stderr=output, stdout=output) as supervisor:
        try:
            traces = run / "traces" / f"step-{MID_STEP + 1:06d}.jsonl"
            wait_for(lambda: traces.exists() and traces.read_bytes().count(b"\n") >= 3, supervisor, log)
            (driver,) = children(supervisor.pid)
            os.kill(driver, signal.SIGKILL)
            assert supervisor.wait(300) == 0, log.read_text()
        finally:
            supervisor.kill()
    assert "the driver was ended by SIGKILL: it resumes its run" in log.read_text()
    assert_like(run, reference)
    assert_rollouts_were_reused(run, MID_STEP + 1)


def wait_for(
    condition: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, deadline_s: float = 240.0
) -> None:
    started_s = time.monotonic()
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() - started_s < deadline_s, log.read_text()
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
async def test_a_disk_that_is_full(reference: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        watcher = Watcher(lambda: fill(ballast), at_step=MID_STEP, after_rollouts=1)
        recipe = load_recipe(write_cluster_recipe(tmp_path))
        with pytest.raises(InfrastructureError, match=r"(?i)no space|cannot (save|write)"):
            await train_on_cluster(prepare_new(recipe, disk / "run", check_cluster), watcher)
        ballast.unlink()
        await train_on_cluster(prepare_resumed(disk / "run", check_cluster), watcher)
        assert_like(disk / "run", reference)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of its own cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(4096))


async def test_generation_may_run_ahead_as_far_as_it_is_allowed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = load_recipe(write_cluster_recipe(tmp_path), ["train.max_staleness=1", "algo.tis_cap=2.0"])
    await train_on_cluster(prepare_new(recipe, run, check_cluster), Watcher())
    assert len(losses(run)) == NUM_STEPS
    lags = [
        step - 1 - turn.policy_version
        for step in range(1, NUM_STEPS + 1)
        for trace in RunView(run).traces(step)
        if trace.id.startswith(f"s{step:06d}-")
        for turn in trace.turns
    ]
    assert min(lags) >= 0 and max(lags) == 1, "some rollouts were sampled one step ahead, and none further"
