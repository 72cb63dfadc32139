"""The scheduler's own account of one engine's cache: who has a place there, and how full it is going to be.

A rollout has its place from the moment it is sent there until it ends, moves or is given up, tool calls included.
Siblings hold their prompt once.
"""

import numpy as np

from rstar2.rollout.facts import EngineSpeed, RolloutSpec
from rstar2.rollout.need import Floats, NeedModel


class EngineRoom:
    def __init__(self, engine: str, num_cache_tokens: int, speed: EngineSpeed) -> None:
        self.engine = engine
        self.num_cache_tokens = num_cache_tokens
        self.speed = speed
        self.residents: dict[str, int] = {}
        """Each rollout's own tokens, as far as they are known."""
        self.num_own_tokens = 0
        self.num_prompt_tokens = 0
        self.prompts_held: dict[str, int] = {}
        """How many residents share each problem's prompt."""
        self._forecast: tuple[Floats, Floats] | None = None
        self._need_version = -1

    @property
    def num_used_tokens(self) -> int:
        return self.num_own_tokens + self.num_prompt_tokens

    def add(self, spec: RolloutSpec, num_own_tokens: int) -> None:
        self.residents[spec.rollout] = num_own_tokens
        self.num_own_tokens += num_own_tokens
        if spec.problem not in self.prompts_held:
            self.prompts_held[spec.problem] = 0
            self.num_prompt_tokens += spec.num_prompt_tokens
        self.prompts_held[spec.problem] += 1
        self._forecast = None

    def remove(self, spec: RolloutSpec) -> None:
        self.num_own_tokens -= self.residents.pop(spec.rollout)
        self.prompts_held[spec.problem] -= 1
        if not self.prompts_held[spec.problem]:
            del self.prompts_held[spec.problem]
            self.num_prompt_tokens -= spec.num_prompt_tokens
        self._forecast = None

    def grow(self, rollout: str, num_own_tokens: int) -> None:
        self.num_own_tokens += num_own_tokens - self.residents[rollout]
        self.residents[rollout] = num_own_tokens
        self._forecast = None

    def fits(self, spec: RolloutSpec, need: NeedModel, share: float, deviations: float) -> bool:
        """Whether at every moment to come the mean of what all residents and this rollout will hold, and so many
        standard deviations, fit into this share of the cache. An empty engine takes anything."""
        if not self.residents:
            return True
        horizons = need.horizons()
        if self._forecast is None or self._need_version != need.version:
            self._forecast = need.forecast(self.residents, horizons)
            self._need_version = need.version
        mean, variance = need.forecast((spec.rollout,), horizons)
        expected = self._forecast[0] + mean + deviations * np.sqrt(self._forecast[1] + variance)
        prompt = 0 if spec.problem in self.prompts_held else spec.num_prompt_tokens
        return bool(expected.max() <= share * self.num_cache_tokens - self.num_prompt_tokens - prompt)
