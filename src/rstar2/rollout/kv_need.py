"""How much cache rollouts will need: response lengths, learned while they run.

Symbols (docs/scheduler.md uses the same). The logarithm of a response's length is normal: `mu` for its problem, spread
`sigma` within a problem; the `mu` of the problems are normal around `m` with spread `tau`. Each stage of a curriculum
has its own `m`, `tau`, `sigma`. A running rollout of x tokens is evidence that its length is above x, and a response
that was cut off, at its limit or because it was abandoned, likewise, so early, short endings do not bias the
estimate. Turns correct the chance to end: those of number t end `rate(t)` times as often as their lengths predict.

Invariant: a forecast never exceeds the rollout's response limit, whatever was learned.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from rstar2.rollout.scheduler import RolloutSpec
from rstar2.rollout.turn_rates import TurnRates

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FIRST_MEDIAN_SHARE = 1 / 3
"""The first guess of the median length, as a share of the response limit."""
FIRST_DEVIATION = 0.4
"""How far off the first guess of the median may be, as a standard deviation of its logarithm."""
FIRST_SPREAD = 0.6
"""The first guess of `sigma` and `tau`: two in three lengths within a factor of 1.8 of their middle."""
PRIOR_WEIGHT = 8.0
"""How many problems, or responses, the first guess counts for."""
DRIFT = 0.3
"""How far a problem's `mu` moves from one submission to the next, because the policy learns."""
LONGEST_DEVIATIONS = 2.5
"""How far the longest of some hundred responses is above `mu`, in spreads."""
NUM_HORIZONS = 24
"""Moments in the future at which the need for cache is forecast."""
REFRESH_EVERY = 32
"""Endings between two updates of the estimates; or a 64th of all endings so far, if that is more."""
NEWTON_STEPS = 3
NUM_EVIDENCE = 2048
"""While rollouts run, the estimates also use the ended ones among this many latest rollouts."""
MOST_UPDATES = 8
"""The most updates in one call: by then Newton's method has converged."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Mean and variance of a number of tokens, at each horizon along the last axis."""

    mean: Floats
    variance: Floats

    def __add__(self, other: "Forecast") -> "Forecast":
        """The forecast of the sum of independent numbers."""
        return Forecast(self.mean + other.mean, self.variance + other.variance)

    def take(self, rows: Ints) -> "Forecast":
        return Forecast(self.mean[rows], self.variance[rows])

    @classmethod
    def zero(cls, num_rows: int) -> "Forecast":
        return cls(np.zeros((num_rows, NUM_HORIZONS)), np.zeros((num_rows, NUM_HORIZONS)))


@dataclass(slots=True)
class StageLengths:
    """The estimated distribution of the lengths of one stage."""

    m: float
    m_deviation: float = FIRST_DEVIATION
    tau: float = FIRST_SPREAD
    sigma: float = FIRST_SPREAD


class NeedModel:
    def __init__(self) -> None:
        self._version = 0
        self._turns = TurnRates()
        self._num_ended = 0
        self._num_since_refresh = 0
        self._stages: list[StageLengths] = []
        self._stage_numbers: dict[str, int] = {}
        self._history: dict[str, tuple[float, float]] = {}
        """`mu` and its variance, of problems that were submitted before."""
        self._staying: dict[str, tuple[float, float, float]] = {}
        """The prior of `mu` and its variance, and `mu`, of problems whose rollouts stayed at the last submission."""
        # One entry per rollout that runs, and per ended one that is still learnt from.
        self._rows: dict[str, int] = {}
        self._specs: list[RolloutSpec] = []
        self._tokens = np.zeros(0)
        self._turn = np.zeros(0, dtype=np.int64)
        self._turn_tokens = np.zeros(0)
        """How long the response was when the turn began."""
        self._has_ended = np.zeros(0, dtype=bool)
        self._is_cut_off = np.zeros(0, dtype=bool)
        self._limit = np.zeros(0)
        self._problem = np.zeros(0, dtype=np.int64)
        self._mu = np.zeros(0)
        self._spread = np.zeros(0)
        """The spread of the forecast: `sigma` and the uncertainty of `mu` together."""
        self._rate = np.zeros(0)
        # One entry per problem of these rollouts.
        self._problem_rows: dict[str, int] = {}
        self._problem_stage = np.zeros(0, dtype=np.int64)
        self._problem_prior_mu = np.zeros(0)
        self._problem_prior_variance = np.zeros(0)
        """NaN where there is no history: then `m` and `tau` of the stage are used."""
        self._problem_mu = np.zeros(0)
        self._problem_mu_cautious = np.zeros(0)
        self._problem_variance = np.zeros(0)
        self._problem_spread = np.zeros(0)
        self._problem_limit = np.zeros(0)
        self._problem_tokens = np.zeros(0)
        self.horizons = np.zeros(NUM_HORIZONS)
        """Steps from now at which forecasts are made: dense near the present, up to the longest response."""

    def submit(self, specs: Sequence[RolloutSpec]) -> None:
        """Adds rollouts. The estimates of their problems so far become their history."""
        self._learn_if_due()
        kept = self._rows_to_keep({spec.problem for spec in specs})
        self._remember(kept, {spec.problem for spec in specs})
        for spec in specs:
            if spec.stage not in self._stage_numbers:
                self._stage_numbers[spec.stage] = len(self._stages)
                self._stages.append(StageLengths(m=float(np.log(spec.max_response_tokens * FIRST_MEDIAN_SHARE))))
        self._specs = [self._specs[row] for row in kept] + list(specs)
        self._rows = {spec.rollout: row for row, spec in enumerate(self._specs)}
        fresh = np.zeros(len(specs))
        self._tokens = np.concatenate([self._tokens[kept], fresh])
        self._turn = np.concatenate([self._turn[kept], fresh.astype(np.int64)])
        self._turn_tokens = np.concatenate([self._turn_tokens[kept], fresh])
        self._has_ended = np.concatenate([self._has_ended[kept], fresh.astype(bool)])
        self._is_cut_off = np.concatenate([self._is_cut_off[kept], fresh.astype(bool)])
        self._limit = np.array([spec.max_response_tokens for spec in self._specs], dtype=np.float64)
        self._enter_problems()
        self._refresh()

    def _rows_to_keep(self, submitted: Collection[str]) -> Ints:
        """The rows of running rollouts and, beside them, of recently ended ones: estimates from survivors alone would
        be too long. If nothing runs, a new step begins, and no row is kept."""
        is_kept = ~self._has_ended
        if is_kept.any():
            num_rows = len(self._specs)
            is_other = np.array([spec.problem not in submitted for spec in self._specs])
            is_kept |= is_other & (np.arange(num_rows) >= num_rows - NUM_EVIDENCE)
        return np.flatnonzero(is_kept)

    def _remember(self, kept: Ints, submitted: Collection[str]) -> None:
        """Turns the estimates of problems whose rows go, or that are submitted again, into their history; the others
        stay as they are. Fork points of a tree get none: they are never submitted again."""
        staying = {self._specs[row].problem for row in kept} - set(submitted)
        branched = {spec.problem for spec in self._specs if spec.parent}
        self._staying = {}
        for problem, row in self._problem_rows.items():
            mu = float(self._problem_mu[row])
            if problem in staying:
                prior = float(self._problem_prior_mu[row]), float(self._problem_prior_variance[row])
                self._staying[problem] = (*prior, mu)
            elif problem not in branched:
                self._history[problem] = (mu, float(self._problem_variance[row]) + DRIFT**2)

    def observe(self, rollout: str, num_response_tokens: int) -> None:
        """The rollout has `num_response_tokens` now."""
        self._tokens[self._rows[rollout]] = num_response_tokens

    def begin_turn(self, rollout: str) -> None:
        """The rollout begins another turn, so its last one did not end it."""
        row = self._rows[rollout]
        self._count_turn(row, has_ended=False)
        self._turn[row] += 1
        self._rate[row] = self._turns.rate(int(self._turn[row]))

    def end(self, rollout: str, num_response_tokens: int, *, was_abandoned: bool = False) -> None:
        row = self._rows[rollout]
        self._tokens[row] = num_response_tokens
        self._has_ended[row] = True
        self._is_cut_off[row] = was_abandoned or num_response_tokens >= self._limit[row]
        self._count_turn(row, has_ended=not self._is_cut_off[row])
        self._num_ended += 1
        self._num_since_refresh += 1

    @property
    def version(self) -> int:
        """Grows when forecasts have changed."""
        self._learn_if_due()
        return self._version

    def expected_tokens(self, problems: Iterable[str]) -> Floats:
        """The mean length of a new response to each of these problems."""
        self._learn_if_due()
        return self._problem_tokens[[self._problem_rows[problem] for problem in problems]]

    def longest_tokens(self, problems: Iterable[str]) -> Floats:
        """A length that hardly any new response to each of these problems exceeds."""
        self._learn_if_due()
        rows = [self._problem_rows[problem] for problem in problems]
        longest = np.exp(self._problem_mu[rows] + LONGEST_DEVIATIONS * self._problem_spread[rows])
        return np.minimum(longest, self._problem_limit[rows])

    def expected_tokens_left(self, rollout: str) -> float:
        """The expected number of further tokens of a running rollout."""
        self._learn_if_due()
        row = self._rows[rollout]
        ahead = np.linspace(0.0, max(0.0, self._limit[row] - self._tokens[row]), NUM_HORIZONS)
        return float(np.trapezoid(self._alive(np.array([row]), ahead)[0], ahead))

    def forecast(self, rollouts: Iterable[str]) -> Forecast:
        """The forecast of the own tokens that these running rollouts hold together."""
        self._learn_if_due()
        rows = np.fromiter((self._rows[rollout] for rollout in rollouts), dtype=np.int64)
        if not rows.size:
            return Forecast(np.zeros(NUM_HORIZONS), np.zeros(NUM_HORIZONS))
        rows = rows[np.argsort(self._problem[rows], kind="stable")]
        alive = self._alive(rows, self.horizons)
        held = self._tokens[rows, None] + self.horizons
        deviation = held * np.sqrt(alive * (1 - alive))
        # Errors of siblings are correlated, as far as their problem is uncertain: deviations add up, not variances.
        problems = self._problem[rows]
        shared = (self._problem_variance / self._problem_spread**2)[problems, None]
        first = np.flatnonzero(np.diff(problems, prepend=-1))
        together = np.add.reduceat(deviation, first, axis=0)
        variance = ((1 - shared) * deviation**2).sum(axis=0) + (shared[first] * together**2).sum(axis=0)
        return Forecast((held * alive).sum(axis=0), variance)

    def forecast_new(self, problems: Iterable[str]) -> Forecast:
        """The forecast of the own tokens of a new response to each of these problems."""
        self._learn_if_due()
        rows = np.array([self._problem_rows[problem] for problem in problems], dtype=np.int64)
        mu, spread, limit = self._problem_mu_cautious[rows], self._problem_spread[rows], self._problem_limit[rows]
        alive = np.exp(log_ndtr((mu[:, None] - np.log(self.horizons + 1)) / spread[:, None]))
        alive[self.horizons >= limit[:, None]] = 0.0
        mean = self.horizons * alive
        return Forecast(mean, mean * self.horizons * (1 - alive))

    def _alive(self, rows: Ints, horizons: Floats) -> Floats:
        """The chance that each rollout still runs after each horizon."""
        tokens = np.concatenate([self._tokens[rows, None], self._tokens[rows, None] + horizons], axis=1)
        log_alive = log_ndtr((self._mu[rows, None] - np.log(tokens + 1)) / self._spread[rows, None])
        alive = np.exp(self._rate[rows, None] * (log_alive[:, 1:] - log_alive[:, :1]))
        alive[tokens[:, 1:] >= self._limit[rows, None]] = 0.0
        return np.asarray(alive)

    def _count_turn(self, row: int, *, has_ended: bool) -> None:
        before, now = (
            log_ndtr((self._mu[row] - np.log(tokens[row] + 1)) / self._spread[row])
            for tokens in (self._turn_tokens, self._tokens)
        )
        self._turns.count(int(self._turn[row]), float(before - now), has_ended=has_ended)
        self._turn_tokens[row] = self._tokens[row]

    def _expected_endings(self, rows: Ints) -> Floats:
        """How often each rollout was expected to end since its turn began."""
        tokens = np.stack([self._turn_tokens[rows], self._tokens[rows]])
        log_alive = log_ndtr((self._mu[rows] - np.log(tokens + 1)) / self._spread[rows])
        return np.asarray(log_alive[0] - log_alive[1])

    def _enter_problems(self) -> None:
        self._problem_rows = {}
        for spec in self._specs:
            self._problem_rows.setdefault(spec.problem, len(self._problem_rows))
        self._problem = np.array([self._problem_rows[spec.problem] for spec in self._specs], dtype=np.int64)
        self._problem_stage = np.zeros(len(self._problem_rows), dtype=np.int64)
        self._problem_stage[self._problem] = [self._stage_numbers[spec.stage] for spec in self._specs]
        self._problem_limit = np.zeros(len(self._problem_rows))
        self._problem_limit[self._problem] = self._limit
        self.horizons = float(self._limit.max(initial=1.0)) * np.linspace(0.0, 1.0, NUM_HORIZONS) ** 1.5
        known = [self._known(problem) for problem in self._problem_rows]
        self._problem_prior_mu, self._problem_prior_variance, mu = np.array(known).reshape(-1, 3).T
        m = np.array([stage.m for stage in self._stages])[self._problem_stage]
        self._problem_mu = np.where(np.isnan(mu), m, mu)

    def _known(self, problem: str) -> tuple[float, float, float]:
        """The prior of `mu`, its variance, and the first guess of `mu`; NaN where those of the stage are used."""
        if problem in self._staying:
            return self._staying[problem]
        mu, variance = self._history.get(problem, (np.nan, np.nan))
        return mu, variance, mu

    def _learn_if_due(self) -> None:
        """Updates the estimates only when they are read: where everything fits, nothing reads them. One update takes
        only a few steps of Newton's method, so skipped updates are made up for."""
        num_due = self._num_since_refresh // max(REFRESH_EVERY, self._num_ended // 64)
        for _ in range(min(num_due, MOST_UPDATES)):
            self._refresh()

    def _refresh(self) -> None:
        """Update the estimates from all ended and running rollouts."""
        self._num_since_refresh = 0
        self._version += 1
        started = np.flatnonzero(self._tokens > 0)
        sigma = np.array([stage.sigma for stage in self._stages])[self._problem_stage]
        self._learn_problems(started, sigma)
        for number in range(len(self._stages)):
            self._learn_stage(number, started)
        # An error in `m` is the same for all, so it does not average out: forecasts err on the long side.
        caution = np.array([stage.m_deviation for stage in self._stages])[self._problem_stage]
        unknown = self._problem_variance / (self._problem_variance + sigma**2)
        self._problem_mu_cautious = self._problem_mu + caution * unknown
        self._problem_spread = np.sqrt(sigma**2 + self._problem_variance)
        self._mu = self._problem_mu_cautious[self._problem]
        self._spread = self._problem_spread[self._problem]
        running = started[~self._has_ended[started]]
        self._turns.learn(self._turn[running], self._expected_endings(running))
        self._rate = self._turns.rates(self._turn)
        self._problem_tokens = self._mean_tokens()

    def _learn_problems(self, started: Ints, sigma: Floats) -> None:
        """Estimates the most likely `mu` of each problem and its variance, by Newton's method from the last
        estimates."""
        m = np.array([stage.m for stage in self._stages])[self._problem_stage]
        tau = np.array([stage.tau for stage in self._stages])[self._problem_stage]
        is_new = np.isnan(self._problem_prior_mu)
        prior_mu = np.where(is_new, m, self._problem_prior_mu)
        prior_variance = np.where(is_new, tau**2, self._problem_prior_variance)
        problem, spread = self._problem[started], sigma[self._problem[started]]
        for _ in range(NEWTON_STEPS):
            z, is_ended, mills = self._residuals(started, spread)
            slope = np.where(is_ended, z, mills) / spread
            curvature = np.where(is_ended, 1.0, mills * (mills - z)) / spread**2
            precision = 1 / prior_variance + np.bincount(problem, curvature, len(prior_mu))
            pull = (prior_mu - self._problem_mu) / prior_variance + np.bincount(problem, slope, len(prior_mu))
            # Far from the solution a full step can overshoot.
            self._problem_mu = self._problem_mu + np.clip(pull / precision, -1.0, 1.0)
            self._problem_variance = 1 / precision

    def _learn_stage(self, number: int, started: Ints) -> None:
        """One step of expectation maximization for `m`, `tau` and `sigma`."""
        stage = self._stages[number]
        has_started = np.bincount(self._problem[started], minlength=len(self._problem_mu)) > 0
        problems = np.flatnonzero((self._problem_stage == number) & has_started)
        rows = started[self._problem_stage[self._problem[started]] == number]
        if not rows.size:
            return
        z, is_ended, mills = self._residuals(rows, np.full(rows.size, stage.sigma))
        squares = stage.sigma**2 * np.where(is_ended, z**2, 1 + z * mills) + self._problem_variance[self._problem[rows]]
        prior = PRIOR_WEIGHT * FIRST_SPREAD**2
        stage.sigma = float(np.sqrt((prior + squares.sum()) / (PRIOR_WEIGHT + rows.size)))
        mu, variance = self._problem_mu[problems], self._problem_variance[problems]
        first = float(np.log(self._limit[rows].max() * FIRST_MEDIAN_SHARE))
        stage.m = float((PRIOR_WEIGHT * first + mu.sum()) / (PRIOR_WEIGHT + mu.size))
        # The precision with which problems that differ by tau, each known up to its own variance, determine their mean
        # `m`.
        known = np.maximum(0.0, 1 - variance / stage.tau**2).sum() / stage.tau**2
        stage.m_deviation = float((1 / FIRST_DEVIATION**2 + known) ** -0.5)
        scatter = ((mu - stage.m) ** 2 + variance).sum()
        stage.tau = float(np.sqrt((prior + scatter) / (PRIOR_WEIGHT + mu.size)))

    def _residuals(self, rows: Ints, spread: Floats) -> tuple[Floats, Bools, Floats]:
        """For each rollout: (log length - mu) / sigma; whether it ended there; and, for those that did not, by how many
        sigma the mean of all longer lengths is above mu."""
        z = (np.log(self._tokens[rows] + 1) - self._problem_mu[self._problem[rows]]) / spread
        is_ended = self._has_ended[rows] & ~self._is_cut_off[rows]
        mills = np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(-z))
        return z, is_ended, mills

    def _mean_tokens(self) -> Floats:
        """The mean length of each problem's responses, limit included."""
        grid = self._problem_limit[:, None] * (np.arange(NUM_HORIZONS) + 0.5) / NUM_HORIZONS
        alive = np.exp(log_ndtr((self._problem_mu[:, None] - np.log(grid)) / self._problem_spread[:, None]))
        return np.asarray(alive.mean(axis=1) * self._problem_limit)
