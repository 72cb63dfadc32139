"""The rollouts that were submitted and not yet started, and which of them an engine should start next.

Long-expected rollouts go first, because what starts last must be short. Among those, an engine prefers problems whose
prompt it holds or was chosen to hold, by what the prompt would cost in tokens. Siblings start in their order, and of
equal problems the one with the fewest started siblings, so that something is learned of each; then the oldest.

Invariant (no starvation): nothing is started while a rollout waits that was submitted `max_overtakes` or more places
before it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rstar2.rollout.facts import RolloutSpec
from rstar2.rollout.need import Bools, Floats

PROBE_TOKENS = 8192.0
"""What the first start of a problem's is worth in tokens of expected length, for what it will tell of the others; the
next is worth half of that, the third a third."""


class WaitingQueue:
    def __init__(self, max_overtakes: int, prompt_weight: float) -> None:
        self.num_waiting = 0
        self._max_overtakes = max_overtakes
        self._prompt_weight = prompt_weight
        self._num_submitted = 0
        self._queues: dict[str, deque[tuple[int, RolloutSpec]]] = {}
        self._home: dict[str, str] = {}
        self._rows: dict[str, int] = {}
        self._oldest = np.zeros(0)
        self._prompt_bonus = np.zeros(0)
        self._num_started = np.zeros(0)
        self._home_rows: dict[str, list[int]] = {}
        self._expected = np.zeros(0)

    def submit(self, specs: Sequence[RolloutSpec], homes: Mapping[str, str]) -> None:
        """`homes` says at which engine the siblings of each new problem should gather."""
        for spec in specs:
            self._queues.setdefault(spec.problem, deque()).append((self._num_submitted, spec))
            self._num_submitted += 1
        self.num_waiting += len(specs)
        self._home.update(homes)
        self._rebuild()

    @property
    def problems(self) -> Iterable[str]:
        return self._rows

    def expect(self, num_tokens: Floats) -> None:
        """The expected length of a response to each of `problems`."""
        self._expected = num_tokens

    def longest_first(self) -> list[RolloutSpec]:
        """The next rollout of each problem, the one with the longest response to be expected first."""
        rows = np.flatnonzero(self._is_eligible())
        rows = rows[np.argsort(-self._expected[rows], kind="stable")]
        return [self._queues[self._row_problems[row]][0][1] for row in rows]

    def best_for(self, engine: str, prompts_held: Iterable[str]) -> RolloutSpec:
        """Which rollout this engine should start next; there must be one."""
        score = self._expected + PROBE_TOKENS / (1 + self._num_started)
        rows = {self._rows[problem] for problem in prompts_held if problem in self._rows}
        near = list(rows.union(self._home_rows.get(engine, ())))
        score[near] += self._prompt_bonus[near]
        score[~self._is_eligible()] = -np.inf
        return self._queues[self._row_problems[int(score.argmax())]][0][1]

    def _is_eligible(self) -> Bools:
        return np.asarray((self._oldest < self._oldest.min() + self._max_overtakes) & (self._oldest < np.inf))

    def take(self, spec: RolloutSpec) -> None:
        """The rollout that `best_for` named has started."""
        queue = self._queues[spec.problem]
        queue.popleft()
        row = self._rows[spec.problem]
        self._num_started[row] += 1
        self._oldest[row] = queue[0][0] if queue else np.inf
        self.num_waiting -= 1

    def _rebuild(self) -> None:
        started = dict(zip(self._rows, self._num_started, strict=True))
        self._queues = {problem: queue for problem, queue in self._queues.items() if queue}
        self._home = {problem: self._home[problem] for problem in self._queues}
        self._row_problems = list(self._queues)
        self._rows = {problem: row for row, problem in enumerate(self._row_problems)}
        heads = [queue[0] for queue in self._queues.values()]
        self._oldest = np.array([ticket for ticket, _ in heads], dtype=np.float64)
        self._prompt_bonus = self._prompt_weight * np.array([spec.num_prompt_tokens for _, spec in heads])
        self._num_started = np.array([started.get(problem, 0.0) for problem in self._rows])
        self._home_rows = {}
        for problem, engine in self._home.items():
            self._home_rows.setdefault(engine, []).append(self._rows[problem])
