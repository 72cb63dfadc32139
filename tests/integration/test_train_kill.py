"""Kill or stop a training run, again and again, in the middle of whatever it does: it ends as one never killed."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from train_recipes import write_recipe

from rstar2.records import Group, RunStatus, RunView, StepMetrics, Trace
from rstar2.records.record_file import iterate
from rstar2.records.run_layout import segment
from rstar2.train.seeds import Cursor, take

pytestmark = pytest.mark.integration

NAMED_KILLS = ("sft 20", "first 1")
"""In the warm-up; and when a step has its metrics and no checkpoint yet, so that there is something to rewind."""
NUM_RANDOM_KILLS = 4
FIRST_EVENT = 25
"""The folder is a run by then: before it holds a run.json there is nothing to resume."""
MEASURED_TIMES = {
    "tokens_per_s",
    "generate_s",
    "train_s",
    "sync_s",
    "step_s",
    "generate_share",
    "train_share",
    "sync_share",
    "seconds",
    "mean_rollout_seconds",
    "rollout_queued_s",
    "rollout_generating_s",
    "rollout_tool_s",
    "engine_idle_share",
}
ATTEMPTS = Path(__file__).with_name("train_attempts.py")


@dataclass(frozen=True)
class Attempts:
    """Runs one attempt after the other, each in a process of its own."""

    recipe: Path
    process: "subprocess.Popen[str]"

    def make(
        self, run: Path, kill_at: int | str | None = None, delay_s: float = 0.0, number: int = signal.SIGKILL
    ) -> dict[str, Any]:
        when = {"kill_at": kill_at, "delay_s": delay_s, "signal": number}
        order = {"recipe": str(self.recipe), "run": str(run), **when}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert said["signal"] is not None or "num_events" in said, "it crashed: stderr says how"
        return said


@pytest.fixture(scope="module")
def process() -> "Iterator[subprocess.Popen[str]]":
    """It imports once what trains, for the attempts of all tests."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, str(ATTEMPTS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def rows(run: Path) -> list[tuple[int, str, dict[str, float | None]]]:
    """The metrics, but for what a clock says."""
    found = []
    for row in iterate(StepMetrics, run / "metrics.jsonl"):
        values = {name: value for name, value in row.values.items() if name not in MEASURED_TIMES}
        found.append((row.step, row.stage, values))
    return found


def groups(run: Path) -> list[Group]:
    files = [segment(RunView(run).layout.groups, step) for step in range(1, 5)]
    return [group for file in files if file.exists() for group in iterate(Group, file)]


def sampled(run: Path) -> dict[str, tuple[int, ...]]:
    """The tokens of every rollout that is in the records."""
    view, found = RunView(run), dict[str, tuple[int, ...]]()
    for step in view.trace_steps():
        for trace in iterate(Trace, segment(view.layout.traces, step)):
            assert trace.id not in found, "a rollout is recorded twice"
            found[trace.id] = trace.token_ids
    return found


def test_a_run_killed_at_random_moments_ends_as_one_never_killed(
    tmp_path: Path, sandbox_url: str, process: "subprocess.Popen[str]"
) -> None:
    recipe = write_recipe(tmp_path, ("num_slots = 1", f'base_url = "{sandbox_url}"'))
    attempts = Attempts(recipe, process)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    said = attempts.make(whole)
    assert said.get("error") is None and said["signal"] is None
    num_events, draw = said["num_events"], random.Random(11)
    for moment in NAMED_KILLS:
        assert attempts.make(killed, moment)["signal"] == signal.SIGKILL
    # From early to late, so that each kill finds more to lose.
    for latest in range(1, NUM_RANDOM_KILLS + 1):
        kill_at = draw.randrange(FIRST_EVENT, num_events * latest // NUM_RANDOM_KILLS)
        said = attempts.make(killed, kill_at, delay_s=draw.choice([0.0, draw.uniform(0.001, 0.2)]))
        assert said.get("error") is None
        # A kill may also come when the run has just finished.
        if RunView(killed).status is RunStatus.FINISHED:
            break
    else:
        said = attempts.make(killed)
        assert said.get("error") is None and said["signal"] is None
    assert_same_run(killed, whole)
    first = [group.problem_id for group in groups(whole) if group.step <= 2]
    assert first == [f"g{index}" for index in take(Cursor(), len(first), 9, "5/first")[0]]
    assert any((killed / "superseded").iterdir()), "what was beyond the checkpoints is kept"
    last = max(path.name for path in (whole / "checkpoints").iterdir())
    assert json.loads((whole / "checkpoints" / last / "state.json").read_text())["state"]["step"] == 4
    assert not list((killed / "checkpoints").glob(".*")), "nothing unfinished is left"


TREE = "max_prompt_tokens = 48\n[rollout.tree]\nnum_roots = 2\nnum_rounds = 2\n"
NUM_LEAVES, NUM_TREES = 8, 2


def test_a_run_of_trees_killed_inside_steps_ends_as_one_never_killed(
    tmp_path: Path, sandbox_url: str, process: "subprocess.Popen[str]"
) -> None:
    """Each time one leaf is missing from one of the step's trees, and the others are written."""
    recipe = write_recipe(
        tmp_path,
        ("num_slots = 1", f'base_url = "{sandbox_url}"'),
        ("max_prompt_tokens = 48\n", TREE),
        ("group_size = 2", "group_size = 4"),
        ("every_steps = 1\n", "every_steps = 9\n"),
    )
    first, _, second = recipe.read_text().partition('[[stages]]\nname = "second"')
    recipe.write_text(first + "[eval]" + second.partition("[eval]")[2])
    attempts = Attempts(recipe, process)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert attempts.make(whole)["signal"] is None
    num_before = 0
    for step in (1, 2):
        moment = f"written {num_before + NUM_TREES * NUM_LEAVES - 1} of first"
        assert attempts.make(killed, moment)["signal"] == signal.SIGKILL
        trees = trees_of(killed, step)
        assert sorted(map(len, trees)) == [NUM_LEAVES - 1, NUM_LEAVES], moment
        assert any(trace.parent for tree in trees for trace in tree), moment
        num_before += sum(map(len, trees_of(whole, step)))
    said = attempts.make(killed)
    assert said.get("error") is None and said["signal"] is None
    assert_same_run(killed, whole)


def trees_of(run: Path, step: int) -> list[list[Trace]]:
    """The leaves of each tree that are recorded."""
    trees: dict[str, list[Trace]] = {}
    for trace in RunView(run).traces(step):
        if trace.id.startswith("s"):
            trees.setdefault(trace.group_id, []).append(trace)
    return list(trees.values())


def assert_same_run(run: Path, whole: Path) -> None:
    assert RunView(run).status is RunStatus.FINISHED
    assert (run / "final" / "model.safetensors").read_bytes() == (whole / "final" / "model.safetensors").read_bytes()
    assert groups(run) == groups(whole), "a prompt was skipped, repeated, or sampled otherwise"
    assert sampled(run) == sampled(whole)
    assert rows(run) == rows(whole)


MOMENTS = {
    "sft 20": {"sft_step": 21, "step": 0},
    "rollout 2 of eval:sft": {"sft_step": 48, "step": 0},
    "rollout 3 of first": {"stage_index": 0, "step": 0},
    "first 1": {"stage_index": 0, "step": 1},
    "rollout 4 of filter:second": {"stage_index": 1, "step": 2},
    "rollout 2 of second": {"stage_index": 1, "step": 2},
    "second 3": {"stage_index": 1, "step": 3},
    "rollout 1 of eval:second": {"stage_index": 2, "step": 4},
}
"""When SIGTERM comes, and what the newest checkpoint says then."""


def test_a_run_stopped_by_sigterm_loses_no_step_and_ends_as_one_never_stopped(
    tmp_path: Path, sandbox_url: str, process: "subprocess.Popen[str]"
) -> None:
    """Without any checkpoint inside the warm-up or a stage but those of the signals."""
    changes = ("num_slots = 1", f'base_url = "{sandbox_url}"'), ("every_steps = 1\n", "every_steps = 9\n")
    attempts = Attempts(write_recipe(tmp_path, *changes), process)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    attempts.make(whole)
    for moment, expected in MOMENTS.items():
        said = attempts.make(stopped, moment, number=signal.SIGTERM)
        assert said["exit_code"] == 128 + signal.SIGTERM
        assert RunView(stopped).status is RunStatus.INTERRUPTED
        newest = max((stopped / "checkpoints").glob("[0-9]*"))
        state = json.loads((newest / "state.json").read_text())["state"]
        assert expected.items() <= state.items(), moment
    said = attempts.make(stopped)
    assert said.get("error") is None and said["signal"] is None
    assert_same_run(stopped, whole)
    assert not list((stopped / "superseded").glob("*/metrics.jsonl")), "nothing was learnt twice"
