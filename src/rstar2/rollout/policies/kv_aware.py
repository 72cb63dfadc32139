"""`kv-aware`: admission by expected need, surprises first, moves where they pay, and an overflow that costs little.

- A rollout starts where the forecast of all residents and of itself stays within the cache (`cache_account`,
  `kv_need`). The reserve for the forecast's error is controlled by what overflow has cost so far.
- It stays with its cache. After its tool call it continues at once, unless no rollout waits to start and an engine is
  so much emptier that the time saved on each further token outweighs recomputing its context.
- If an engine fills up nevertheless, the smallest contexts are dropped, because they are the cheapest to recompute:
  caches of rollouts that wait for a tool are evicted, running turns are cancelled. They continue, before anything new
  starts, wherever there is room.
- The rollouts of a lost engine continue in the same way.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rstar2.errors import UserError
from rstar2.rollout.cache_account import CacheAccount, CacheLimits
from rstar2.rollout.kv_need import NeedModel
from rstar2.rollout.scheduler import (
    Cancel,
    Decision,
    EngineJoined,
    EngineLost,
    EngineReported,
    Evict,
    Fact,
    KeepWaiting,
    Move,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Start,
    TokensGrown,
    ToolCalled,
    ToolReturned,
    TurnCancelled,
    TurnEnded,
)
from rstar2.rollout.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class KvAwareSettings:
    deviations: float = 2.3
    """Standard deviations of the forecast that are kept free initially."""
    overflow_budget: float = 0.003
    """Share of all tokens that may be recomputed because of overflow. Unspent budget makes the reserve smaller,
    overspending makes it larger."""
    reserve_gain: float = 100.0
    """By how many deviations the reserve changes for a budget of as many tokens as all caches hold."""
    least_deviations: float = 0.5
    most_deviations: float = 4.0
    admission_share: float = 0.93
    """Share of the cache that forecasts may fill."""
    overflow_share: float = 0.985
    """Share of the cache beyond which rollouts are evicted or cancelled."""
    max_overtakes: int = 16_384
    """The aging bound: how often a rollout may be overtaken; by default the number of rollouts in a step of the
    report."""
    prompt_weight: float = 2.0
    """How many tokens of surprise a shared prompt's token is worth when an engine chooses what to start."""
    siblings_per_home: int = 4
    """Siblings run where their prompt is, but not all on one engine: their lengths are correlated."""
    move_gain: float = 4.0
    """A move must save this many times its cost: neighbours end too, and then there is less to save."""
    num_remembered: int = 32_768
    """For how many ended rollouts the engine is remembered, for their branches: twice the number in a step of the
    report."""
    move_budget: float = 0.007
    """Share of all tokens so far that may be recomputed, including overflow; beyond it only forced moves happen."""


class KvAware:
    wants_reports = True

    def __init__(self, settings: KvAwareSettings | None = None) -> None:
        self._settings = settings or KvAwareSettings()
        self._need = NeedModel()
        self._need_version = -1
        self._waiting = WaitingQueue(self._settings.max_overtakes, self._settings.prompt_weight)
        self._accounts: dict[str, CacheAccount] = {}
        self._num_homes = 0
        self._specs: dict[str, RolloutSpec] = {}
        self._tokens: dict[str, int] = {}
        """Own tokens of each rollout that has started."""
        self._num_tokens = 0
        """Own tokens of all rollouts, including ended ones."""
        self._num_recomputed = 0
        """Tokens that were, or will be, recomputed because of overflow or of moves that were not forced."""
        self._num_to_spare = 0.0
        """The unspent overflow budget, in tokens; negative if it is overspent."""
        self._engine_of: dict[str, str] = {}
        """The engine of each rollout that is in a cache."""
        self._ended_at: OrderedDict[str, str] = OrderedDict()
        """The last engine of rollouts that ended by themselves: its prefix cache may still hold what their branches
        share."""
        self._at_tool: set[str] = set()
        self._being_cancelled: set[str] = set()
        self._displaced: dict[str, str] = {}
        """Rollouts that have started but are in no cache, and their last engine; those not at a tool are ready to
        run."""

    def handle(self, fact: Fact) -> Sequence[Decision]:
        match fact:
            case TokensGrown():
                self._grow(fact.rollout, fact.num_tokens)
                return ()
            case EngineReported():
                return self._reported(fact)
            case TurnEnded():
                self._grow(fact.rollout, fact.num_tokens)
                self._being_cancelled.discard(fact.rollout)
                return ()
            case ToolCalled():
                self._at_tool.add(fact.rollout)
                return ()
            case ToolReturned():
                return self._tool_returned(fact)
            case RolloutEnded():
                return self._ended(fact)
            case TurnCancelled():
                return self._cancelled(fact)
            case RolloutsSubmitted():
                return self._submitted(fact.rollouts)
            case EngineJoined():
                self._accounts[fact.engine] = CacheAccount(fact.engine, fact.num_cache_tokens, fact.speed)
                return self._fill((fact.engine,))
            case EngineLost():
                return self._lost(fact.engine)

    def _submitted(self, specs: Sequence[RolloutSpec]) -> list[Decision]:
        largest_cache = max((account.num_cache_tokens for account in self._accounts.values()), default=0)
        for spec in specs:
            if spec.num_prompt_tokens + spec.max_response_tokens > largest_cache:
                raise UserError(
                    f"rollout {spec.rollout} may need {spec.num_prompt_tokens + spec.max_response_tokens} tokens of "
                    f"cache, but no engine has more than {largest_cache}; lower max_response_tokens"
                )
        self._specs |= {spec.rollout: spec for spec in specs}
        self._need.submit(specs)
        self._waiting.submit(specs, self._choose_homes(specs))
        self._need_version = -1
        started = self._fill(self._accounts)
        running = {decision.rollout for decision in started}
        return [*started, *(KeepWaiting(spec.rollout) for spec in specs if spec.rollout not in running)]

    def _choose_homes(self, specs: Sequence[RolloutSpec]) -> dict[str, tuple[str, ...]]:
        """Branches are at home where their parent ended. Other homes are assigned round-robin, so that every engine is
        home to equally many siblings."""
        engines = list(self._accounts)
        homes: dict[str, tuple[str, ...]] = {}
        parents = {spec.problem: spec.parent for spec in specs}
        for problem, num_siblings in Counter(spec.problem for spec in specs).items():
            home = self._ended_at.get(parents[problem])
            if home in self._accounts:
                homes[problem] = (home,)
                continue
            count = min(len(engines), max(1, round(num_siblings / self._settings.siblings_per_home)))
            homes[problem] = tuple(engines[(self._num_homes + number) % len(engines)] for number in range(count))
            self._num_homes += count
        return homes

    def _grow(self, rollout: str, num_tokens: int) -> None:
        num_own = num_tokens - self._specs[rollout].num_prompt_tokens
        num_grown = num_own - self._tokens[rollout]
        self._num_tokens += num_grown
        self._num_to_spare += self._settings.overflow_budget * num_grown
        self._tokens[rollout] = num_own
        self._need.observe(rollout, num_own)
        engine = self._engine_of.get(rollout)
        if engine is not None:
            self._accounts[engine].grow(rollout, num_own)

    def _reported(self, fact: EngineReported) -> list[Decision]:
        account = self._accounts[fact.engine]
        limit = self._settings.overflow_share * account.num_cache_tokens
        excess = account.num_used_tokens - limit
        return self._give_up(account, excess) if excess > 0 else self._fill((fact.engine,))

    def _give_up(self, account: CacheAccount, excess: float) -> list[Decision]:
        decisions: list[Decision] = []
        for rollout, num_own in sorted(account.residents.items(), key=lambda resident: resident[1]):
            if excess <= 0:
                break
            if rollout in self._at_tool:
                self._overflow(rollout)
                decisions.append(Evict(rollout, account.engine))
            elif rollout in self._being_cancelled:
                pass
            else:
                self._being_cancelled.add(rollout)
                decisions.append(Cancel(rollout, account.engine))
            excess -= num_own
        return decisions

    def _overflow(self, rollout: str) -> None:
        account = self._accounts[self._engine_of[rollout]]
        self._displace(rollout)
        num_lost = account.num_missing(self._specs[rollout]) + self._tokens[rollout]
        self._num_recomputed += num_lost
        self._num_to_spare -= num_lost

    def _displace(self, rollout: str) -> None:
        engine = self._engine_of.pop(rollout)
        self._accounts[engine].remove(self._specs[rollout])
        self._displaced[rollout] = engine

    def _tool_returned(self, fact: ToolReturned) -> list[Decision]:
        rollout = fact.rollout
        self._at_tool.remove(rollout)
        self._grow(rollout, fact.num_tokens)
        self._need.begin_turn(rollout)
        engine = self._engine_of.get(rollout)
        if engine is None:
            return self._fill(self._emptiest_first()) or [KeepWaiting(rollout)]
        target = self._better_engine(rollout, engine)
        if target is None:
            return [Resume(rollout, engine)]
        self._num_recomputed += self._num_to_compute(rollout, self._accounts[target])
        self._displace(rollout)
        del self._displaced[rollout]
        self._place(rollout, target)
        return [Move(rollout, engine, target)]

    def _num_to_compute(self, rollout: str, account: CacheAccount) -> int:
        """Tokens that another engine must compute to continue the rollout: all but the prompt parts that its residents
        share."""
        return account.num_missing(self._specs[rollout]) + self._tokens[rollout]

    def _better_engine(self, rollout: str, engine: str) -> str | None:
        """An engine where the rollout would gain more than the move costs. While rollouts wait to start, every engine
        is kept full, and there is nothing to gain."""
        if self._waiting.num_waiting or self._displaced or len(self._accounts) < 2:
            return None
        here = self._accounts[engine]
        there = min(self._accounts.values(), key=lambda account: account.num_used_tokens)
        context = self._specs[rollout].num_prompt_tokens + self._tokens[rollout]
        num_to_compute = self._num_to_compute(rollout, there)
        num_fewer_read = here.num_used_tokens - there.num_used_tokens - num_to_compute
        if num_fewer_read <= 0 or self._num_recomputed + num_to_compute > self._settings.move_budget * self._num_tokens:
            return None
        # Its own steps get shorter by what its former neighbours hold, those of its neighbours by what it holds; its
        # prefill delays everything that runs there.
        num_fewer_read += context * (len(here.residents) - 1 - len(there.residents))
        saved_s = self._need.expected_tokens_left(rollout) * num_fewer_read * there.speed.cached_token_s
        cost_s = num_to_compute * there.speed.prefill_token_s * (len(there.residents) + 1)
        return there.engine if saved_s > self._settings.move_gain * cost_s else None

    def _ended(self, fact: RolloutEnded) -> list[Decision]:
        rollout = fact.rollout
        spec = self._specs.pop(rollout)
        self._need.end(rollout, fact.num_tokens - spec.num_prompt_tokens, was_abandoned=fact.was_abandoned)
        self._at_tool.discard(rollout)
        self._being_cancelled.discard(rollout)
        if self._tokens.pop(rollout, None) is None:
            self._waiting.withdraw(spec)
            return []
        engine = self._engine_of.pop(rollout, None)
        if engine is None:
            del self._displaced[rollout]
            return self._fill(self._emptiest_first())
        self._accounts[engine].remove(spec)
        if not fact.was_abandoned:
            self._ended_at[rollout] = engine
        if len(self._ended_at) > self._settings.num_remembered:
            self._ended_at.popitem(last=False)
        return self._fill((engine,))

    def _cancelled(self, fact: TurnCancelled) -> list[Decision]:
        self._being_cancelled.discard(fact.rollout)
        self._grow(fact.rollout, fact.num_tokens)
        self._overflow(fact.rollout)
        return self._fill(self._emptiest_first()) or [KeepWaiting(fact.rollout)]

    def _lost(self, engine: str) -> list[Decision]:
        for rollout in list(self._accounts[engine].residents):
            self._being_cancelled.discard(rollout)
            self._displace(rollout)
        del self._accounts[engine]
        return self._fill(self._emptiest_first())

    def _emptiest_first(self) -> list[str]:
        """The engines, the emptiest first."""
        return sorted(self._accounts, key=lambda engine: self._accounts[engine].num_used_tokens)

    def _fill(self, engines: Iterable[str]) -> list[Decision]:
        """Let these engines take rollouts in turns while there is room: first displaced ones, then new ones."""
        decisions: list[Decision] = []
        open_engines = list(engines)
        if not open_engines or not (self._displaced or self._waiting.num_waiting):
            return decisions
        limits = self._steer_limits()
        while open_engines:
            taken = [(engine, self._take_one(self._accounts[engine], limits)) for engine in open_engines]
            decisions += [decision for _, decision in taken if decision is not None]
            open_engines = [engine for engine, decision in taken if decision is not None]
        return decisions

    def _steer_limits(self) -> CacheLimits:
        """The limits with the present reserve, one for all engines: each alone overflows too rarely to learn from. The
        reserve is clamped, and budget beyond the clamp lapses: otherwise a long time without overflow would allow an
        equally long one with it."""
        settings = self._settings
        per_deviation = sum(account.num_cache_tokens for account in self._accounts.values()) / settings.reserve_gain
        wanted = settings.deviations - self._num_to_spare / per_deviation
        deviations = min(max(wanted, settings.least_deviations), settings.most_deviations)
        self._num_to_spare = (settings.deviations - deviations) * per_deviation
        return CacheLimits(settings.admission_share, deviations)

    def _take_one(self, account: CacheAccount, limits: CacheLimits) -> Decision | None:
        rollout = next((rollout for rollout in self._displaced if rollout not in self._at_tool), None)
        if rollout is not None:
            if not self._fits_displaced(rollout, account, limits):
                return None
            self._place(rollout, account.engine)
            source = self._displaced.pop(rollout)
            return Resume(rollout, source) if source == account.engine else Move(rollout, source, account.engine)
        if not self._waiting.num_waiting:
            return None
        if self._need_version != self._need.version:
            self._need_version = self._need.version
            problems = list(self._waiting.problems)
            surprises = self._need.longest_tokens(problems) - self._need.expected_tokens(problems)
            self._waiting.expect(surprises, self._need.forecast_new(problems))
        # A forecast costs time for each resident, at each start: skip it where even the worst case fits.
        is_ample = limits.fits_worst_case(account, self._waiting.most_tokens)
        spec = self._waiting.best_for(account, None if is_ample else account.forecast(self._need), limits)
        if spec is None:
            return None
        self._waiting.take(spec)
        self._place(spec.rollout, account.engine)
        return Start(spec.rollout, account.engine)

    def _fits_displaced(self, rollout: str, account: CacheAccount, limits: CacheLimits) -> bool:
        """Whether there is room for a rollout that has started."""
        spec = self._specs[rollout]
        prompt = account.num_missing(spec)
        forecast = account.forecast(self._need) + self._need.forecast((rollout,))
        return bool(limits.fit(account, forecast, np.array([prompt])).all())

    def _place(self, rollout: str, engine: str) -> None:
        self._accounts[engine].add(self._specs[rollout], self._tokens.setdefault(rollout, 0))
        self._engine_of[rollout] = engine
