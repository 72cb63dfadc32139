"""`kv-aware`: admission by expected need, surprises first, moves where they pay, and an overflow that costs little.

- A rollout starts where the forecast of all that live there, and of it, stays within the cache (`room`, `need`). What
  is kept free for the forecast's error is steered by what overflow has cost so far.
- It stays with its cache. Back from its tool it goes on at once, unless nothing waits to start any more and an engine
  is so much emptier that the time saved on each token to come outweighs computing its context again.
- If an engine fills up all the same, places are given up, the smallest contexts first, because they are the cheapest
  to compute again: caches of rollouts that wait for a tool are evicted, running turns cancelled. They go on, before
  anything new starts, wherever there is room.
- What a lost engine held goes on in the same way.
"""

from collections import Counter
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
    """Standard deviations of the forecast that are kept free at first."""
    overflow_budget: float = 0.003
    """Of all tokens: how many may be computed again because of overflow. What is left of it makes the reserve smaller,
    what was spent beyond it makes it larger."""
    reserve_gain: float = 100.0
    """By how many deviations, for as many tokens as all caches hold."""
    least_deviations: float = 0.5
    most_deviations: float = 4.0
    admission_share: float = 0.93
    """Of the cache: what forecasts may fill."""
    overflow_share: float = 0.985
    """Of the cache: beyond this, places are given up."""
    max_overtakes: int = 16_384
    """The aging bound: one step of the report."""
    prompt_weight: float = 2.0
    """How many tokens of surprise a shared prompt's token is worth when an engine chooses what to start."""
    siblings_per_home: int = 4
    """Siblings gather where their prompt is, but not all at one engine: they are long or short together."""
    move_gain: float = 4.0
    """A move must save so many times what it costs: neighbours end, too, and then there is less to be saved."""
    move_budget: float = 0.007
    """Of all tokens so far: how many may be computed again, overflow included, before moves that are not forced end."""


class KvAware:
    wants_reports = True

    def __init__(self, settings: KvAwareSettings | None = None) -> None:
        self._settings = settings or KvAwareSettings()
        self._need = NeedModel()
        self._need_version = -1
        self._waiting = WaitingQueue(self._settings.max_overtakes, self._settings.prompt_weight)
        self._rooms: dict[str, CacheAccount] = {}
        self._num_homes = 0
        self._specs: dict[str, RolloutSpec] = {}
        self._tokens: dict[str, int] = {}
        """Own tokens of every rollout that has started."""
        self._num_tokens = 0
        """Own tokens of all rollouts ever."""
        self._num_again = 0
        """Tokens that were, or will be, computed again: because of overflow, or of moves that were not forced."""
        self._num_to_spare = 0.0
        """Of the overflow budget: what is left, below zero if more was spent."""
        self._engine_of: dict[str, str] = {}
        """Where each rollout has its place."""
        self._at_tool: set[str] = set()
        self._being_cancelled: set[str] = set()
        self._displaced: dict[str, str] = {}
        """Rollouts that have started but have no place, and where they had one; those not at a tool want to go on."""

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
                self._rooms[fact.engine] = CacheAccount(fact.engine, fact.num_cache_tokens, fact.speed)
                return self._fill((fact.engine,))
            case EngineLost():
                return self._lost(fact.engine)

    def _submitted(self, specs: Sequence[RolloutSpec]) -> list[Decision]:
        room = max((room.num_cache_tokens for room in self._rooms.values()), default=0)
        for spec in specs:
            if spec.num_prompt_tokens + spec.max_response_tokens > room:
                raise UserError(
                    f"rollout {spec.rollout} may need {spec.num_prompt_tokens + spec.max_response_tokens} tokens of "
                    f"cache, but no engine has more than {room}; lower max_response_tokens"
                )
        self._specs |= {spec.rollout: spec for spec in specs}
        self._need.submit(specs)
        self._waiting.submit(specs, self._choose_homes(specs))
        self._need_version = -1
        started = self._fill(self._rooms)
        running = {decision.rollout for decision in started}
        return [*started, *(KeepWaiting(spec.rollout) for spec in specs if spec.rollout not in running)]

    def _choose_homes(self, specs: Sequence[RolloutSpec]) -> dict[str, tuple[str, ...]]:
        """Engines take turns in being a home, so that each is home to as many siblings."""
        engines = list(self._rooms)
        homes: dict[str, tuple[str, ...]] = {}
        for problem, num_siblings in Counter(spec.problem for spec in specs).items():
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
            self._rooms[engine].grow(rollout, num_own)

    def _reported(self, fact: EngineReported) -> list[Decision]:
        room = self._rooms[fact.engine]
        limit = self._settings.overflow_share * room.num_cache_tokens
        excess = room.num_used_tokens - limit
        return self._give_up(room, excess) if excess > 0 else self._fill((fact.engine,))

    def _give_up(self, room: CacheAccount, excess: float) -> list[Decision]:
        decisions: list[Decision] = []
        for rollout, num_own in sorted(room.residents.items(), key=lambda resident: resident[1]):
            if excess <= 0:
                break
            if rollout in self._at_tool:
                self._overflow(rollout)
                decisions.append(Evict(rollout, room.engine))
            elif rollout in self._being_cancelled:
                pass
            else:
                self._being_cancelled.add(rollout)
                decisions.append(Cancel(rollout, room.engine))
            excess -= num_own
        return decisions

    def _overflow(self, rollout: str) -> None:
        context = self._specs[rollout].num_prompt_tokens + self._tokens[rollout]
        self._num_again += context
        self._num_to_spare -= context
        self._displace(rollout)

    def _displace(self, rollout: str) -> None:
        engine = self._engine_of.pop(rollout)
        self._rooms[engine].remove(self._specs[rollout])
        self._displaced[rollout] = engine

    def _tool_returned(self, fact: ToolReturned) -> list[Decision]:
        rollout = fact.rollout
        self._at_tool.remove(rollout)
        self._grow(rollout, fact.num_tokens)
        self._need.begin_turn(rollout)
        engine = self._engine_of.get(rollout)
        if engine is None:
            return self._fill(self._by_room()) or [KeepWaiting(rollout)]
        target = self._better_engine(rollout, engine)
        if target is None:
            return [Resume(rollout, engine)]
        self._displace(rollout)
        del self._displaced[rollout]
        self._settle(rollout, target)
        self._num_again += fact.num_tokens
        return [Move(rollout, engine, target)]

    def _better_engine(self, rollout: str, engine: str) -> str | None:
        """Where the rollout would gain more than the move costs. While rollouts wait to start, every engine is kept
        full, and there is nothing to gain."""
        if self._waiting.num_waiting or self._displaced or len(self._rooms) < 2:
            return None
        here = self._rooms[engine]
        there = min(self._rooms.values(), key=lambda room: room.num_used_tokens)
        context = self._specs[rollout].num_prompt_tokens + self._tokens[rollout]
        num_fewer_read = here.num_used_tokens - there.num_used_tokens - context
        if num_fewer_read <= 0 or self._num_again + context > self._settings.move_budget * self._num_tokens:
            return None
        # Its own steps get shorter by what it no longer shares an engine with, those of its neighbours by what it
        # holds; its prefill holds up everyone who runs there.
        num_fewer_read += context * (len(here.residents) - 1 - len(there.residents))
        saved_s = self._need.expected_tokens_left(rollout) * num_fewer_read * there.speed.cached_token_s
        cost_s = context * there.speed.prefill_token_s * (len(there.residents) + 1)
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
            return self._fill(self._by_room())
        self._rooms[engine].remove(spec)
        return self._fill((engine,))

    def _cancelled(self, fact: TurnCancelled) -> list[Decision]:
        self._being_cancelled.discard(fact.rollout)
        self._grow(fact.rollout, fact.num_tokens)
        self._overflow(fact.rollout)
        return self._fill(self._by_room()) or [KeepWaiting(fact.rollout)]

    def _lost(self, engine: str) -> list[Decision]:
        for rollout in list(self._rooms[engine].residents):
            self._being_cancelled.discard(rollout)
            self._displace(rollout)
        del self._rooms[engine]
        return self._fill(self._by_room())

    def _by_room(self) -> list[str]:
        """The engines, the emptiest first."""
        return sorted(self._rooms, key=lambda engine: self._rooms[engine].num_used_tokens)

    def _fill(self, engines: Iterable[str]) -> list[Decision]:
        """Let these engines take in turns what they have room for: first what was displaced, then what is new."""
        decisions: list[Decision] = []
        open_engines = list(engines)
        if not open_engines or not (self._displaced or self._waiting.num_waiting):
            return decisions
        limits = self._steer_limits()
        while open_engines:
            taken = [(engine, self._take_one(self._rooms[engine], limits)) for engine in open_engines]
            decisions += [decision for _, decision in taken if decision is not None]
            open_engines = [engine for engine, decision in taken if decision is not None]
        return decisions

    def _steer_limits(self) -> CacheLimits:
        """The reserve, one for all engines: each alone overflows too rarely to learn from. Budget that would make it
        smaller than the least, or larger than the most, lapses: otherwise a long quiet time would have to be paid for
        by an equally long time of overflow."""
        settings = self._settings
        per_deviation = sum(room.num_cache_tokens for room in self._rooms.values()) / settings.reserve_gain
        wanted = settings.deviations - self._num_to_spare / per_deviation
        deviations = min(max(wanted, settings.least_deviations), settings.most_deviations)
        self._num_to_spare = (settings.deviations - deviations) * per_deviation
        return CacheLimits(settings.admission_share, deviations)

    def _take_one(self, room: CacheAccount, limits: CacheLimits) -> Decision | None:
        rollout = next((rollout for rollout in self._displaced if rollout not in self._at_tool), None)
        if rollout is not None:
            if not self._goes_on(rollout, room, limits):
                return None
            self._settle(rollout, room.engine)
            source = self._displaced.pop(rollout)
            return Resume(rollout, source) if source == room.engine else Move(rollout, source, room.engine)
        if not self._waiting.num_waiting:
            return None
        if self._need_version != self._need.version:
            self._need_version = self._need.version
            problems = list(self._waiting.problems)
            surprises = self._need.longest_tokens(problems) - self._need.expected_tokens(problems)
            self._waiting.expect(surprises, self._need.forecast_new(problems))
        # A forecast takes a look at each resident, and at each start again: not where even the worst case fits.
        is_ample = limits.fit_whatever_comes(room, self._waiting.most_tokens)
        spec = self._waiting.best_for(room, None if is_ample else room.forecast(self._need), limits)
        if spec is None:
            return None
        self._waiting.take(spec)
        self._settle(spec.rollout, room.engine)
        return Start(spec.rollout, room.engine)

    def _goes_on(self, rollout: str, room: CacheAccount, limits: CacheLimits) -> bool:
        """Whether there is room for a rollout that has started."""
        spec = self._specs[rollout]
        prompt = 0 if spec.problem in room.prompts_held else spec.num_prompt_tokens
        forecast = room.forecast(self._need) + self._need.forecast((rollout,))
        return bool(limits.fit(room, forecast, np.array([prompt])).all())

    def _settle(self, rollout: str, engine: str) -> None:
        self._rooms[engine].add(self._specs[rollout], self._tokens.setdefault(rollout, 0))
        self._engine_of[rollout] = engine
