"""A process that forks attempts at a training run, each of which may be told to kill itself. Speaks JSON lines.

Forking from a process that has imported everything makes an attempt cheap: an attempt that ends says which modules it
has imported on its way, and the next ones find them. An attempt counts what it does to the run
directory and what it tells its observer; at the number that it is given it is killed, or some time after it, in the
middle of whatever that is: a step, an evaluation, a checkpoint that is being written, a rename. The kernel does it, and
nothing of Python's runs any more. Or it sends itself, at a moment that has a name, a signal that it can answer.

`rollout 5 of first` is the moment when the fifth rollout of a phase has ended, and `written 5 of first` when the files
of training hold five.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

WRITING_DEADLINE_S = 120.0
FILE_EVENTS = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")


class Counter:
    """Satisfies `Observer`, and hears of every file of the run that is touched."""

    def __init__(self, run: Path, kill_at: int | str | None, delay_s: float, number: int) -> None:
        self.num_events = 0
        self._signal = number
        self._phase = ""
        self._num_rollouts = 0
        self._run = str(run)
        self._kill_at = kill_at
        self._delay_s = delay_s
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in FILE_EVENTS and str(args[0]).startswith(self._run):
            self._count()

    def _count(self, name: str = "") -> None:
        self.num_events += 1
        if self._kill_at is not None and self._kill_at in (self.num_events, name):
            if self._delay_s:
                signal.setitimer(signal.ITIMER_REAL, self._delay_s)
            else:
                os.kill(os.getpid(), self._signal)

    def phase(self, name: str, _num_steps: int, _num_done: int) -> None:
        self._phase, self._num_rollouts = name, 0
        self._count()

    def metrics(self, step: int, stage: str, _values: Mapping[str, float]) -> None:
        self._count(f"{stage} {step}")

    def waits_for(self, _what: str) -> None:
        pass

    def rollouts_begun(self, _num_begun: int) -> None:
        pass

    def rollouts(self, num_ended: int) -> None:
        self._num_rollouts += num_ended
        self._count(f"rollout {self._num_rollouts} of {self._phase}")
        moment = f"written {self._num_rollouts} of {self._phase}"
        if self._kill_at == moment:
            self._wait_until_written(self._num_rollouts)
            self._count(moment)

    def say(self, _message: str) -> None:
        self._count()

    def _wait_until_written(self, num_rollouts: int) -> None:
        """A thread writes them. The rollouts before training are those of step 0."""
        deadline_s = time.monotonic() + WRITING_DEADLINE_S
        while self._num_written() < num_rollouts:
            assert time.monotonic() < deadline_s, "the rollouts are not written"
            time.sleep(0.01)

    def _num_written(self) -> int:
        files = (Path(self._run) / "traces").glob("step-*.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files if file.stem != "step-000000")


def attempt(recipe: Path, run: Path, kill_at: int | str | None, delay_s: float, number: int) -> dict[str, Any]:
    import torch
    import typer

    from rstar2.cli.interrupts import Interrupts
    from rstar2.config import load_recipe
    from rstar2.errors import InfrastructureError, UserError
    from rstar2.train import prepare_new, prepare_resumed, train, trainer

    torch.set_num_threads(1)
    if number == signal.SIGKILL:
        trainer.SFT_CHECKPOINT_PERIOD_S = 0.05  # The warm-up is short, and is to be killed in its middle as well.
    counter, interrupts = Counter(run, kill_at, delay_s, number), Interrupts()
    try:
        with interrupts.watched():
            is_new = not (run / "run.json").exists()
            prepared = prepare_new(load_recipe(recipe), run) if is_new else prepare_resumed(run)
            interrupts.run(train(prepared, counter))
    except typer.Exit as end:
        return {"num_events": counter.num_events, "exit_code": end.exit_code}
    except (UserError, InfrastructureError) as error:
        return {"error": f"{type(error).__name__}: {error}", "num_events": counter.num_events}
    return {"num_events": counter.num_events}


def import_all(names: list[str]) -> None:
    for name in set(names) - set(sys.modules):
        with suppress(Exception):  # modules that no import makes have names, too
            importlib.import_module(name)


def main() -> None:
    import rstar2.train

    assert rstar2.train, "imported for the attempts"
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            recipe, run = Path(order["recipe"]), Path(order["run"])
            said = attempt(recipe, run, order["kill_at"], order["delay_s"], order["signal"])
            with os.fdopen(writer, "w") as pipe:
                json.dump({**said, "modules": sorted(sys.modules)}, pipe)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        report = json.loads(said) if said else {}
        import_all(report.pop("modules", []))
        print(json.dumps({**report, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None}), flush=True)


if __name__ == "__main__":
    main()
