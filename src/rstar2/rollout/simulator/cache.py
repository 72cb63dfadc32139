"""The KV cache of one simulated engine, in tokens.

Like vLLM's prefix cache: when a turn ends or is preempted, its tokens stay cached until the room is needed, then is
evicted least recently used first, the end of a context before its beginning. Siblings share their prompt, and branches
of a tree the parts of it that they have in common; a part stays as long as one of them has anything here. Rollouts that
have ended leave nothing but what branches will begin with, which spares the others' caches; vLLM itself would evict
them only by age.

Invariant: `num_held` (running) + `num_kept` (left behind) + `num_prompt` (shared) never exceed `num_tokens`.
"""

from collections import OrderedDict
from collections.abc import Sequence

from rstar2.rollout.scheduler import PromptPart


class Cache:
    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.num_held = 0
        self.num_kept = 0
        self.num_prompt = 0
        self._kept: OrderedDict[str, int] = OrderedDict()
        self._parts_of: dict[str, Sequence[PromptPart]] = {}
        self._num_users: dict[PromptPart, int] = {}
        self._unused: OrderedDict[PromptPart, None] = OrderedDict()
        """Parts that ended rollouts left for branches; counted in `num_kept`, and evicted first."""

    @property
    def num_available(self) -> int:
        """Tokens that running rollouts can still take, if everything that was left behind is evicted."""
        return self.num_tokens - self.num_held - self.num_prompt

    @property
    def num_used(self) -> int:
        return self.num_held + self.num_kept + self.num_prompt

    def kept(self, rollout: str) -> int:
        """Own tokens of this rollout, beyond the prompt, that are cached here."""
        return self._kept.get(rollout, 0)

    def num_missing(self, parts: Sequence[PromptPart]) -> int:
        """Tokens of a prompt that have to be computed: nothing is found behind a part that is not cached."""
        num_found = 0
        for part in parts:
            if part not in self._num_users and part not in self._unused:
                break
            num_found += part.num_tokens
        return sum(part.num_tokens for part in parts) - num_found

    def fits(self, parts: Sequence[PromptPart], num_own_tokens: int) -> bool:
        num_new = sum(part.num_tokens for part in parts if part not in self._num_users)
        return num_new + num_own_tokens <= self.num_available

    def hold(self, rollout: str, parts: Sequence[PromptPart], num_own_tokens: int) -> None:
        """A rollout starts to run with `num_own_tokens`, some of which may be cached here."""
        self.num_kept -= self._kept.pop(rollout, 0)
        if rollout not in self._parts_of:
            self._parts_of[rollout] = parts
            for part in parts:
                if part not in self._num_users:
                    self._drop_unused(part)
                    self._num_users[part] = 0
                    self.num_prompt += part.num_tokens
                self._num_users[part] += 1
        self.grow(num_own_tokens)

    def leave_for_branches(self, parts: Sequence[PromptPart]) -> None:
        """A rollout that ran here has ended; these parts of its context, first to last, are what branches of it begin
        with. They stay while there is room."""
        for part in reversed(parts):
            if part not in self._num_users and part not in self._unused:
                self._unused[part] = None
                self.num_kept += part.num_tokens
        self.grow(0)

    def _drop_unused(self, part: PromptPart) -> None:
        if part in self._unused:
            del self._unused[part]
            self.num_kept -= part.num_tokens

    def grow(self, num_tokens: int) -> None:
        """Running rollouts take `num_tokens` more; kept tokens of rollouts that do not run are evicted for them."""
        self.num_held += num_tokens
        excess = self.num_used - self.num_tokens
        while excess > 0 and self._unused:
            self._drop_unused(next(iter(self._unused)))
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
        for part in self._parts_of.pop(rollout, ()):
            self._num_users[part] -= 1
            if not self._num_users[part]:
                del self._num_users[part]
                self.num_prompt -= part.num_tokens

    def forget_all_kept(self) -> None:
        for part in list(self._unused):
            self._drop_unused(part)
        for rollout in list(self._kept):
            self.forget(rollout)
