"""The interface of those who follow a run: terminals, metric services, tests."""

from collections.abc import Mapping
from typing import Protocol


class Observer(Protocol):
    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        """A phase begins or is resumed: the warm-up, a stage, a filter, an evaluation. Filters and evaluations count
        rollouts instead of steps."""
        ...

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """One row of metrics.jsonl."""
        ...

    def waits_for(self, what: str) -> None:
        """The run begins to wait for `what`: the engine, rollouts, the update."""
        ...

    def rollouts_begun(self, num_begun: int) -> None:
        """A step begins `num_begun` more rollouts."""
        ...

    def rollouts(self, num_ended: int) -> None:
        """`num_ended` more rollouts of the phase ended."""
        ...

    def say(self, message: str) -> None:
        """A message to the user, on a separate line."""
        ...


class Observers:
    """Calls all observers in order. Satisfies `Observer`."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        for observer in self._observers:
            observer.phase(name, num_steps, num_done)

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for observer in self._observers:
            observer.metrics(step, stage, values)

    def waits_for(self, what: str) -> None:
        for observer in self._observers:
            observer.waits_for(what)

    def rollouts_begun(self, num_begun: int) -> None:
        for observer in self._observers:
            observer.rollouts_begun(num_begun)

    def rollouts(self, num_ended: int) -> None:
        for observer in self._observers:
            observer.rollouts(num_ended)

    def say(self, message: str) -> None:
        for observer in self._observers:
            observer.say(message)
