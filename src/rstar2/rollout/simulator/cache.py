"""The KV cache of one simulated engine, in tokens.

Like vLLM's prefix cache: when a turn ends or is preempted, its tokens stay cached until the room is needed, then is
evicted least recently used first, the end of a context before its beginning. Siblings share their prompt; it stays as
long as one of them has anything here. Rollouts that have ended leave nothing, which spares the others' caches; vLLM
itself would evict them only by age.

Invariant: `num_held` (running) + `num_kept` (left behind) + `num_prompt` (shared) never exceed `num_tokens`.
"""

from collections import OrderedDict


class Cache:
    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_held = 0
        self.num_kept = 0
        self.num_prompt = 0
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._problem_of: dict[str, str] = {}
        self._num_users: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}

    @property
    def num_available(self) -> int:
        """What running rollouts can still take, if everything that was left behind is evicted."""
        return self.num_tokens - self.num_held - self.num_prompt

    @property
    def num_used(self) -> int:
        return self.num_held + self.num_kept + self.num_prompt

    def kept(self, rollout: str) -> int:
        """Own tokens of this rollout, beyond the prompt, that are cached here."""
        return self._kept.get(rollout, 0)

    def has_prompt(self, problem: str) -> bool:
        return problem in self._num_users

    def fits(self, problem: str, num_prompt_tokens: int, num_own_tokens: int) -> bool:
        prompt = 0 if problem in self._num_users else num_prompt_tokens
        return prompt + num_own_tokens <= self.num_available

    def hold(self, rollout: str, problem: str, num_prompt_tokens: int, num_own_tokens: int) -> None:
        """A rollout starts to run with `num_own_tokens`, some of which may be cached here."""
        self.num_kept -= self._kept.pop(rollout, 0)
        if rollout not in self._problem_of:
            self._problem_of[rollout] = problem
            if problem not in self._num_users:
                self._num_users[problem] = 0
                self._prompt_tokens[problem] = num_prompt_tokens
                self.num_prompt += num_prompt_tokens
            self._num_users[problem] += 1
        self.grow(num_own_tokens)

    def grow(self, num_tokens: int) -> None:
        """Running rollouts take `num_tokens` more; kept tokens of rollouts that do not run are evicted for them."""
        self.num_held += num_tokens
        excess = self.num_used - self.num_tokens
        while excess > 0:
            rollout, tokens = next(iter(self._kept.items()))
            if tokens > excess:
                self._kept[rollout] = tokens - excess
                self.num_kept -= excess
                return
            self.forget(rollout)
            excess = self.num_used - self.num_tokens

    def leave(self, rollout: str, num_own_tokens: int, num_computed_tokens: int) -> None:
        """A rollout stops running; its computed tokens stay cached while there is room."""
        num_left_behind = max(0, num_computed_tokens)
        self.num_held -= num_own_tokens
        self._kept[rollout] = num_left_behind
        self.num_kept += num_left_behind

    def forget(self, rollout: str) -> None:
        """Drop the cached tokens of a rollout that does not run."""
        self.num_kept -= self._kept.pop(rollout, 0)
        problem = self._problem_of.pop(rollout, None)
        if problem is None:
            return
        self._num_users[problem] -= 1
        if not self._num_users[problem]:
            del self._num_users[problem]
            self.num_prompt -= self._prompt_tokens.pop(problem)

    def forget_all_kept(self) -> None:
        for rollout in list(self._kept):
            self.forget(rollout)
