"""How a training run looks in a terminal: a live view where there is a screen, one line a row where there is none."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

from rstar2.cli.progress import LINE_PERIOD_S, minutes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rstar2.cli.console import Console

Value = TypeVar("Value")

BARS = "▁▂▃▄▅▆▇█"
NUM_POINTS = 48
"""The points of a curve: as many as fit beside its name on 80 columns."""
CURVES = (
    ("reward_mean", "reward", "{:.3f}"),
    ("accuracy", "accuracy", "{:.0%}"),
    ("groups_kept", "groups kept", "{:.0f}"),
    ("tool_error_share_right", "tool errors, right", "{:.1%}"),
    ("tool_error_share_wrong", "tool errors, wrong", "{:.1%}"),
    ("response_tokens_mean", "response tokens", "{:.0f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
)


def shown_curves(values: Mapping[str, Value]) -> list[tuple[str, str, str]]:
    """The curves that there are values for. The reward is left out where it is the accuracy: where every reward is the
    verdict, 0 or 1."""
    return [
        curve
        for curve in CURVES
        if curve[0] in values and not (curve[0] == "reward_mean" and values[curve[0]] == values.get("accuracy"))
    ]


def counts_rollouts(phase: str) -> bool:
    return phase.startswith(("eval:", "filter:"))


@dataclass(slots=True)
class Wait:
    """What the run waits for, and how many rollouts of it have ended."""

    what: str
    since_s: float
    num_begun: int = 0
    num_ended: int = 0

    def step_ended(self) -> None:
        """Rollouts that a later step has begun are still running."""
        self.num_begun = max(0, self.num_begun - self.num_ended)
        self.num_ended = 0

    def text(self, now_s: float) -> str:
        counted = f", {self.num_ended} of {self.num_begun} ended" if self.what == "rollouts" else ""
        return f"waiting for {self.what}{counted}, {minutes(now_s - self.since_s)}"


class Progress:
    """What is known of the run. Satisfies `Observer`."""

    def __init__(self, clock: Any = time.monotonic) -> None:
        self._clock = clock
        self.started_s = clock()
        self.name, self.num_steps, self.num_done, self.num_rollouts = "starting", 0, 0, 0
        self.phase_started_s, self.num_done_before = self.started_s, 0
        self.curves: dict[str, list[float]] = {key: [] for key, _, _ in CURVES}
        self.loss: float | None = None
        self.evaluations: list[tuple[str, float]] = []
        self.messages: list[str] = []
        self._wait: Wait | None = None

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        self.name, self.num_steps, self.num_done, self.num_rollouts = name, num_steps, num_done, 0
        self.phase_started_s, self.num_done_before = self._clock(), num_done
        self._wait = None

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if stage.startswith("eval:"):
            self.evaluations.append((stage.removeprefix("eval:"), values["accuracy"]))
            return
        if self._wait is not None:
            self._wait.step_ended()
        self.loss = values.get("loss", self.loss)
        self.num_done = step + 1 if stage == "sft" else self.num_done + 1
        for key, points in self.curves.items():
            if stage != "sft" and key in values:
                points.append(values[key])

    def waits_for(self, what: str) -> None:
        self._wait = _next_wait(self._wait, what, self._clock())

    def rollouts_begun(self, num_begun: int) -> None:
        if self._wait is not None:
            self._wait.num_begun += num_begun

    def rollouts(self, num_ended: int) -> None:
        self.num_rollouts += num_ended
        if self._wait is not None:
            self._wait.num_ended += num_ended

    @property
    def waiting(self) -> str | None:
        """What the run waits for, as text."""
        wait = self._wait  # another thread may end it meanwhile
        return None if wait is None else wait.text(self._clock())

    def say(self, message: str) -> None:
        self.messages.append(message)

    @property
    def done_share(self) -> float | None:
        """The finished share of the phase, in rollouts or in steps."""
        if not self.num_steps:
            return None
        return min(1.0, (self.num_rollouts if counts_rollouts(self.name) else self.num_done) / self.num_steps)

    @property
    def left_s(self) -> float | None:
        """The time left in the phase, at its pace so far."""
        share, before = self.done_share, self.num_done_before / self.num_steps if self.num_steps else 0.0
        if share is None or share <= before:
            return None
        return float(self._clock() - self.phase_started_s) / (share - before) * (1 - share)

    @property
    def elapsed_s(self) -> float:
        return float(self._clock() - self.started_s)


def _next_wait(wait: Wait | None, what: str, now_s: float) -> Wait:
    """The counts continue: rollouts of the next step may be running while the run waits for an update."""
    return Wait(what, now_s) if wait is None else Wait(what, now_s, wait.num_begun, wait.num_ended)


class Lines:
    """One line for each thing that happened: for logs, pipes and CI. Satisfies `Observer`.

    While nothing happens, `tick` says what the run waits for.
    """

    def __init__(self, console: "Console", clock: Any = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started_s = self._printed_s = clock()
        self._phase, self._num_done, self._num_in_phase = "", 0, 0
        self._wait: Wait | None = None

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        self._phase, self._num_done, self._num_in_phase = name, num_done, num_steps
        self._wait = None
        size = f", {num_steps} {self._unit}" if num_steps else ""
        self._print(f"{name}{size}" + (f", {num_done} done" if num_done else ""))

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if self._wait is not None:
            self._wait.step_ended()
        if stage == "sft":
            self._num_done = step + 1
            if step % 100:
                return
        shown = [f"{label} {form.format(values[key])}" for key, label, form in shown_curves(values)]
        if stage == "sft":
            shown.insert(0, f"loss {values['loss']:.3f}")
        self._print(f"  {stage} {step}: " + ", ".join(shown))

    def waits_for(self, what: str) -> None:
        self._wait = _next_wait(self._wait, what, self._clock())

    def rollouts_begun(self, num_begun: int) -> None:
        if self._wait is not None:
            self._wait.num_begun += num_begun

    def rollouts(self, num_ended: int) -> None:
        if counts_rollouts(self._phase):
            self._num_done += num_ended
        if self._wait is not None:
            self._wait.num_ended += num_ended

    def say(self, message: str) -> None:
        self._print(f"  {message}")

    def tick(self) -> None:
        """A line about the wait, if there was no line for a while."""
        if self._clock() - self._printed_s < LINE_PERIOD_S:
            return
        wait = self._wait  # another thread may end it meanwhile
        if wait is not None:
            self._print(f"  {wait.text(self._clock())}")
        elif self._phase:
            self._print(f"  {self._phase}: {self._num_done} of {self._num_in_phase} {self._unit} done")

    @property
    def _unit(self) -> str:
        return "rollouts" if counts_rollouts(self._phase) else "steps"

    def _print(self, text: str) -> None:
        self._printed_s = self._clock()
        head = f"[{minutes(self._printed_s - self._started_s)}] "
        for line in wrap(
            head + text,
            self._console.width,
            subsequent_indent=" " * (len(head) + 4),
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def sparkline(values: list[float], num_points: int = NUM_POINTS) -> str:
    """The curve as bars, each the mean of its share of the values, scaled from 0 or the least to the most."""
    if not values:
        return ""
    num_bars = min(num_points, len(values))
    bounds = [round(index * len(values) / num_bars) for index in range(num_bars + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(0.0, *means), max(means)
    spread = (high - low) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / spread * len(BARS)))] for mean in means)


def render(progress: Progress) -> "RenderableType":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((progress.name, "bold"), f"   {minutes(progress.elapsed_s)}")
    if progress.left_s is not None:
        head.append(f", about {minutes(progress.left_s)} left in this phase")
    if progress.loss is not None:
        head.append(f", loss {progress.loss:.3f}")
    parts: list[RenderableType] = [head]
    if progress.waiting is not None:
        parts.append(Text(progress.waiting, style="dim"))
    if progress.done_share is not None:
        parts.append(ProgressBar(total=1.0, completed=progress.done_share, width=70))
    table = Table.grid(padding=(0, 2))
    for key, label, form in shown_curves(progress.curves):
        if points := progress.curves[key]:
            table.add_row(label, form.format(points[-1]), Text(sparkline(points), style="cyan"))
    for name, accuracy in progress.evaluations:
        table.add_row(f"held out after {name}", f"{accuracy:.1%}", "")
    parts.append(table)
    parts += [Text(message, style="dim") for message in progress.messages[-4:]]
    return Group(*parts)


class LiveView:
    """Redraws itself four times a second, from the values of `progress`."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __rich__(self) -> "RenderableType":
        return render(self._progress)
