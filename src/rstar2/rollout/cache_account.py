"""The scheduler's own account of one engine's cache: which rollouts it holds, and a forecast of how full it will be.

A rollout counts from the moment it is sent there until it ends, moves or is evicted, including its tool calls. What
several prompts have in common counts once.
"""

from dataclasses import dataclass

import numpy as np

from rstar2.rollout.kv_need import Bools, Floats, Forecast, NeedModel
from rstar2.rollout.scheduler import EngineSpeed, RolloutSpec


class CacheAccount:
    def __init__(self, engine: str, num_cache_tokens: int, speed: EngineSpeed) -> None:
        self.engine = engine
        self.num_cache_tokens = num_cache_tokens
        self.speed = speed
        self.residents: dict[str, int] = {}
        """Own tokens of each rollout, as last reported."""
        self.num_own_tokens = 0
        self.num_own_tokens_at_most = 0
        """Own tokens of all residents if each reaches its response limit."""
        self.num_prompt_tokens = 0
        self.parts_held: dict[str, int] = {}
        """How many residents share each part of a prompt, by its name."""
        self._part_tokens: dict[str, int] = {}
        self._forecast: Forecast | None = None
        self._need_version = -1

    @property
    def num_used_tokens(self) -> int:
        return self.num_own_tokens + self.num_prompt_tokens

    def add(self, spec: RolloutSpec, num_own_tokens: int) -> None:
        self.residents[spec.rollout] = num_own_tokens
        self.num_own_tokens += num_own_tokens
        self.num_own_tokens_at_most += spec.max_response_tokens
        for part in spec.prompt_parts:
            if part.name not in self.parts_held:
                self.parts_held[part.name] = 0
                self._part_tokens[part.name] = part.num_tokens
                self.num_prompt_tokens += part.num_tokens
            self.parts_held[part.name] += 1
        self._forecast = None

    def remove(self, spec: RolloutSpec) -> None:
        self.num_own_tokens -= self.residents.pop(spec.rollout)
        self.num_own_tokens_at_most -= spec.max_response_tokens
        for part in spec.prompt_parts:
            self.parts_held[part.name] -= 1
            if not self.parts_held[part.name]:
                del self.parts_held[part.name]
                self.num_prompt_tokens -= self._part_tokens.pop(part.name)
        self._forecast = None

    def num_missing(self, spec: RolloutSpec) -> int:
        """Tokens of the prompt that no resident holds."""
        return sum(part.num_tokens for part in spec.prompt_parts if part.name not in self.parts_held)

    def grow(self, rollout: str, num_own_tokens: int) -> None:
        self.num_own_tokens += num_own_tokens - self.residents[rollout]
        self.residents[rollout] = num_own_tokens
        self._forecast = None

    def forecast(self, need: NeedModel) -> Forecast:
        """The forecast of the tokens that all residents will hold, without the prompts."""
        if self._forecast is None or self._need_version != need.version:
            self._forecast = need.forecast(self.residents)
            self._need_version = need.version
        return self._forecast


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """How full a cache may become by forecast: at every future moment, the mean and `deviations` standard deviations
    must fit into this share of it."""

    share: float
    deviations: float

    def fits_worst_case(self, account: CacheAccount, num_more_tokens: float) -> bool:
        """Whether `num_more_tokens` fit even if every resident reaches its limit."""
        num_tokens = account.num_own_tokens_at_most + account.num_prompt_tokens + num_more_tokens
        return num_tokens <= self.share * account.num_cache_tokens

    def fit(self, account: CacheAccount, forecast: Forecast, num_new_prompt_tokens: Floats) -> Bools:
        """Whether each forecast, with that many new prompt tokens, fits. An empty engine takes anything."""
        if not account.residents:
            return np.ones(len(num_new_prompt_tokens), dtype=bool)
        peak = (forecast.mean + self.deviations * np.sqrt(forecast.variance)).max(axis=-1)
        spare = self.share * account.num_cache_tokens - account.num_prompt_tokens
        return np.asarray(peak + num_new_prompt_tokens <= spare)
