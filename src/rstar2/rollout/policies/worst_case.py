"""`worst-case`: the report's reservation. A rollout starts where `prompt + max_response` tokens of cache are still
unreserved, and keeps that reservation until it ends, including tool calls.

Nothing can overflow, and most of what is reserved is never used. Of the engines with room, the one with the most
unreserved tokens takes the next rollout; rollouts start in the order of their submission.
"""

from collections import deque
from collections.abc import Sequence

from rstar2.errors import UserError
from rstar2.rollout.scheduler import (
    Decision,
    EngineJoined,
    EngineLost,
    Fact,
    KeepWaiting,
    Move,
    Resume,
    RolloutEnded,
    RolloutSpec,
    RolloutsSubmitted,
    Start,
    ToolCalled,
    ToolReturned,
)


class WorstCase:
    wants_reports = False

    def __init__(self) -> None:
        self._capacity: dict[str, int] = {}
        self._unreserved: dict[str, int] = {}
        self._specs: dict[str, RolloutSpec] = {}
        self._engine_of: dict[str, str] = {}
        self._lost_from: dict[str, str] = {}
        self._at_tool: set[str] = set()
        self._waiting: deque[str] = deque()

    def handle(self, fact: Fact) -> Sequence[Decision]:
        match fact:
            case RolloutsSubmitted():
                return self._submit(fact.rollouts)
            case ToolCalled():
                self._at_tool.add(fact.rollout)
            case ToolReturned():
                return self._resume(fact.rollout)
            case RolloutEnded():
                return self._end(fact.rollout)
            case EngineJoined():
                self._capacity[fact.engine] = self._unreserved[fact.engine] = fact.num_cache_tokens
                return self._fill()
            case EngineLost():
                return self._lose(fact.engine)
            case _:
                pass
        return ()

    def _submit(self, specs: Sequence[RolloutSpec]) -> list[Decision]:
        for spec in specs:
            if _worst_case(spec) > max(self._capacity.values(), default=0):
                raise UserError(
                    f"rollout {spec.rollout} may need {_worst_case(spec)} tokens of cache, which no engine has; "
                    f"lower max_response_tokens"
                )
        self._specs |= {spec.rollout: spec for spec in specs}
        self._waiting += [spec.rollout for spec in specs]
        started = self._fill()
        running = {decision.rollout for decision in started}
        return [*started, *(KeepWaiting(spec.rollout) for spec in specs if spec.rollout not in running)]

    def _fill(self) -> list[Decision]:
        decisions: list[Decision] = []
        while self._waiting and self._unreserved:
            rollout = self._waiting[0]
            engine = max(self._unreserved, key=self._unreserved.__getitem__)
            need = _worst_case(self._specs[rollout])
            if need > self._unreserved[engine]:
                break
            self._waiting.popleft()
            self._unreserved[engine] -= need
            self._engine_of[rollout] = engine
            if rollout not in self._at_tool:
                source = self._lost_from.pop(rollout, None)
                decisions.append(Start(rollout, engine) if source is None else Move(rollout, source, engine))
        return decisions

    def _resume(self, rollout: str) -> list[Decision]:
        self._at_tool.remove(rollout)
        engine = self._engine_of.get(rollout)
        if engine is None:
            return [KeepWaiting(rollout)]
        source = self._lost_from.pop(rollout, None)
        return [Resume(rollout, engine) if source is None else Move(rollout, source, engine)]

    def _end(self, rollout: str) -> list[Decision]:
        need = _worst_case(self._specs.pop(rollout))
        self._at_tool.discard(rollout)
        self._lost_from.pop(rollout, None)
        engine = self._engine_of.pop(rollout, None)
        if engine is None:
            self._waiting.remove(rollout)
        else:
            self._unreserved[engine] += need
        return self._fill()

    def _lose(self, lost: str) -> list[Decision]:
        del self._unreserved[lost], self._capacity[lost]
        stranded = [rollout for rollout, engine in self._engine_of.items() if engine == lost]
        for rollout in stranded:
            del self._engine_of[rollout]
            self._lost_from.setdefault(rollout, lost)
        self._waiting.extendleft(reversed(stranded))
        return self._fill()


def _worst_case(spec: RolloutSpec) -> int:
    return spec.num_prompt_tokens + spec.max_response_tokens
