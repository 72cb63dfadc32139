"""Runs on a cluster, things that happen to them, and what must be the same as if nothing had."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_recipes import write_recipe

from rstar2.records import RunStatus, RunView, Selection

LOSS_TOLERANCE = 1e-3
NUM_STEPS = 5

CHANGES = (
    ("epochs = 6", "epochs = 14"),
    ("steps = 2\n\n[[stages]]", f"steps = {NUM_STEPS - 2}\n\n[[stages]]"),
    ("prompts_per_step = 2", "prompts_per_step = 4"),
)
"""A warm-up that is long enough for calls that run, and a few more rollouts: something to lose."""

CLUSTER = """
[cluster]
num_nodes = 2
gpus_per_node = 0
layout = "separated"
num_trainer_ranks = 2
num_engines = 2
"""


def write_solo_recipe(folder: Path, *changes: tuple[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    return write_recipe(folder, *CHANGES, *changes)


def write_cluster_recipe(folder: Path, *changes: tuple[str, str], cluster: str = CLUSTER) -> Path:
    recipe = write_solo_recipe(folder, *changes)
    recipe.write_text(recipe.read_text() + cluster)
    return recipe


@dataclass
class Watcher:
    """Satisfies `Observer`: keeps what is said, and does something once, in the middle of a step."""

    act: Callable[[], None] = lambda: None
    at_step: int = -1
    """The training step that follows this one's metrics."""
    after_rollouts: int = 3
    said: list[str] = field(default_factory=list)
    has_acted: bool = False
    _step: int = 0
    _num_rollouts: int = 0
    _is_training: bool = False

    def phase(self, name: str, _num_steps: int, _num_done: int) -> None:
        self._num_rollouts = 0
        self._is_training = name in ("first", "second")

    def metrics(self, step: int, stage: str, _values: Mapping[str, float]) -> None:
        if stage in ("first", "second"):
            self._step, self._num_rollouts = step, 0

    def waits_for(self, _what: str) -> None:
        pass

    def rollouts_begun(self, _num_begun: int) -> None:
        pass

    def rollouts(self, num_ended: int) -> None:
        self._num_rollouts += num_ended
        is_time = self._is_training and self._step == self.at_step and self._num_rollouts >= self.after_rollouts
        if is_time and not self.has_acted:
            self.has_acted = True
            self.act()

    def say(self, message: str) -> None:
        self.said.append(message)


def processes(actor: str) -> list[int]:
    """Of Ray's actors of this class that run below this process, the oldest first: another Ray of this machine may have
    actors of the same class."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
                if title.startswith(f"ray::{actor}".encode()) and _is_descendant(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                continue
    return sorted(found)


def _is_descendant(pid: int) -> bool:
    """Of this process, whichever of its threads started it."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def send(actor: str, number: signal.Signals) -> Callable[[], None]:
    """To the first process of an actor's class."""

    def act() -> None:
        pids = processes(actor)
        assert pids, f"no {actor} runs"
        os.kill(pids[0], number)

    return act


def losses(run: Path) -> dict[int, float]:
    """Of the steps from which something was learnt."""
    rows = [row for row in RunView(run).metrics() if row.stage in ("first", "second")]
    found = {row.step: row.values.get("loss") for row in rows}
    assert len(found) == len(rows), "a step was written twice"
    return {step: value for step, value in found.items() if value is not None}


def assert_like(run: Path, reference: Path) -> None:
    """Finished, with the losses of a run to which nothing happened; every rollout there once, and trained on once."""
    assert RunView(run).status is RunStatus.FINISHED
    expected, found = losses(reference), losses(run)
    assert found.keys() == expected.keys() and len(found) == NUM_STEPS
    for step, loss in expected.items():
        assert abs(found[step] - loss) < LOSS_TOLERANCE, (step, found, expected)
    view = RunView(run)
    for step in range(1, NUM_STEPS + 1):
        ids = Counter(trace.id for trace in view.traces(step) if trace.group_id)
        assert set(ids.values()) == {1}, "a rollout is there twice"
        kept = [
            trace_id
            for group in view.groups(step)
            for trace_id, selection in zip(group.trace_ids, group.selections, strict=True)
            if selection is Selection.KEPT
        ]
        assert len(kept) == len(set(kept)) and set(kept) <= ids.keys(), "a rollout was trained on twice, or never was"
    assert (run / "final" / "model.safetensors").is_file()
