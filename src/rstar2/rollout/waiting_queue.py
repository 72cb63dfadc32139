"""The rollouts that were submitted and not yet started, and which of them an engine should start next.

Of those that fit, the ones that may exceed their expected length by most go first. A step is not over before its last
rollout is, so what may become long must start early; but what is certainly long fills a cache for long, and where all
may reach the same limit, those that are expected to be short let more others start in time. An engine prefers problems
whose prompt it holds, in part or in whole, or is a home of, by the prefill that this saves, and problems of which few
rollouts have started, because those are the most informative. Siblings start in their order, and of equal problems the
one that was submitted first.

Invariant (no starvation): no rollout is started while another waits that was submitted `max_overtakes` or more places
before it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rstar2.rollout.cache_account import CacheAccount, CacheLimits
from rstar2.rollout.kv_need import Floats, Forecast
from rstar2.rollout.scheduler import RolloutSpec

PROBE_TOKENS = 8192.0
"""The worth, in tokens of surprise, of starting a problem's first rollout, for what it reveals about the others; the
second is worth half of that, the third a third."""


class WaitingQueue:
    def __init__(self, max_overtakes: int, prompt_weight: float) -> None:
        self.num_waiting = 0
        self._max_overtakes = max_overtakes
        self._prompt_weight = prompt_weight
        self._num_submitted = 0
        self._queues: dict[str, deque[tuple[int, RolloutSpec]]] = {}
        self._homes: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, int] = {}
        self._oldest = np.zeros(0)
        self._num_prompt = np.zeros(0)
        self._num_started = np.zeros(0)
        self._most_tokens = 0
        self._home_rows: dict[str, list[int]] = {}
        self._part_rows: dict[str, list[tuple[int, int]]] = {}
        """The rows whose prompts have each part, and its tokens."""
        self._row_problems: list[str] = []
        self._surprises = np.zeros(0)
        self._growth = Forecast.zero(0)

    def submit(self, specs: Sequence[RolloutSpec], homes: Mapping[str, tuple[str, ...]]) -> None:
        """`homes`: the engines on which the siblings of each new problem should run."""
        for spec in specs:
            self._queues.setdefault(spec.problem, deque()).append((self._num_submitted, spec))
            self._num_submitted += 1
        self.num_waiting += len(specs)
        self._homes.update(homes)
        self._rebuild()

    @property
    def problems(self) -> Iterable[str]:
        """The problems that had waiting rollouts at the last submission."""
        return self._rows

    def expect(self, surprises: Floats, growth: Forecast) -> None:
        """For each of `problems`: by how many tokens a new response may exceed its mean length, and a forecast of the
        tokens that it will hold."""
        self._surprises, self._growth = surprises, growth

    @property
    def most_tokens(self) -> float:
        """The tokens, prompt and response, that the largest of `problems` can need."""
        return float(self._most_tokens)

    def best_for(self, account: CacheAccount, forecast: Forecast | None, limits: CacheLimits) -> RolloutSpec | None:
        """The rollout that this engine should start next, of those that fit; without a forecast, all do."""
        rows = np.flatnonzero(self._oldest < self._oldest.min() + self._max_overtakes)
        num_near = np.zeros(len(self._oldest))
        for part in account.parts_held.keys() & self._part_rows.keys():
            for row, num_tokens in self._part_rows[part]:
                num_near[row] += num_tokens
        if forecast is not None:
            num_prompt = self._num_prompt[rows] - num_near[rows]
            rows = rows[limits.fit(account, forecast + self._growth.take(rows), num_prompt)]
        if not rows.size:
            return None
        home_rows = self._home_rows.get(account.engine, [])
        num_near[home_rows] = self._num_prompt[home_rows]
        score = self._surprises[rows] + PROBE_TOKENS / (1 + self._num_started[rows])
        score += self._prompt_weight * num_near[rows]
        return self._queues[self._row_problems[rows[int(score.argmax())]]][0][1]

    def take(self, spec: RolloutSpec) -> None:
        """The rollout that `best_for` named has started."""
        self._queues[spec.problem].popleft()
        self._num_started[self._rows[spec.problem]] += 1
        self._remove(spec.problem)

    def withdraw(self, spec: RolloutSpec) -> None:
        """The rollout need not be started any more."""
        queue = self._queues[spec.problem]
        queue.remove(next(entry for entry in queue if entry[1].rollout == spec.rollout))
        self._remove(spec.problem)

    def _remove(self, problem: str) -> None:
        queue = self._queues[problem]
        self._oldest[self._rows[problem]] = queue[0][0] if queue else np.inf
        self.num_waiting -= 1

    def _rebuild(self) -> None:
        started = dict(zip(self._rows, self._num_started, strict=True))
        self._queues = {problem: queue for problem, queue in self._queues.items() if queue}
        self._homes = {problem: self._homes[problem] for problem in self._queues}
        self._row_problems = list(self._queues)
        self._rows = {problem: row for row, problem in enumerate(self._row_problems)}
        heads = [queue[0] for queue in self._queues.values()]
        self._oldest = np.array([ticket for ticket, _ in heads], dtype=np.float64)
        self._num_prompt = np.array([spec.num_prompt_tokens for _, spec in heads], dtype=np.float64)
        self._most_tokens = max((spec.num_prompt_tokens + spec.max_response_tokens for _, spec in heads), default=0)
        self._num_started = np.array([started.get(problem, 0.0) for problem in self._rows])
        self._part_rows = {}
        for row, (_, spec) in enumerate(heads):
            for part in spec.prompt_parts:
                self._part_rows.setdefault(part.name, []).append((row, part.num_tokens))
        self._home_rows = {}
        for problem, engines in self._homes.items():
            for engine in engines:
                self._home_rows.setdefault(engine, []).append(self._rows[problem])
