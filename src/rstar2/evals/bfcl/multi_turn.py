"""BFCL's conversations: how they are played, and the judge of what their calls did.

A user's turn lasts until the model makes no call, for at most 21 steps, as in `bfcl-eval`. A longer turn ends the
conversation, which is then wrong if the user had more to say, and otherwise judged as it is.
"""

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from rstar2.agent import AgentLimits, ChatFormat, End, Transcript
from rstar2.agent.chat_template import ASSISTANT_OPENING, tool_responses, with_tools
from rstar2.agent.incremental import with_user_text
from rstar2.agent.parse import parse_calls
from rstar2.data import MultiTurnCallTask
from rstar2.engine.protocol import Message
from rstar2.environments import Judgement
from rstar2.evals.bfcl.judge import shown_function
from rstar2.evals.bfcl.match import Language
from rstar2.evals.bfcl.services import (
    NOT_RUN,
    CallServices,
    check,
    functions_of,
    known_names,
    require_services,
    source_of,
)
from rstar2.evals.plain_roller import OUTCOMES, Speaker
from rstar2.records import Outcome, Problem, StopReason, ToolCall, ToolStatus, Trace, Turn, Verdict
from rstar2.records.trace import after_thought
from rstar2.rollout.judge import Judge
from rstar2.sandbox import Executor

MAX_STEPS = 21
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_RUN_BY_SERVICES = (ToolStatus.OK, ToolStatus.RAISED)


def first_messages(problem: Problem) -> list[Message]:
    """The first messages: the functions that are available from the start, and the user's first text."""
    task = MultiTurnCallTask.of(problem)
    missed = {name for names in task.missed_functions.values() for name in names}
    system = with_tools("", _shown(task, known_names(task) - missed)).strip()
    return [{"role": "system", "content": system}, {"role": "user", "content": task.turns[0]}]


def said_in_turn(task: MultiTurnCallTask, turn: int) -> str:
    """The user's text in a turn. Functions that become available are described in it, because the system text cannot
    change."""
    names = task.missed_functions.get(turn)
    if names is None:
        return task.turns[turn]
    lines = (json.dumps(function, ensure_ascii=False) for function in _shown(task, set(names)))
    return "\n".join([*lines, MORE_FUNCTIONS])


def _shown(task: MultiTurnCallTask, names: Set[str]) -> list[dict[str, object]]:
    functions = (function for function in functions_of(task) if function["name"] in names)
    return [{"type": "function", "function": shown_function(function, Language.PYTHON)} for function in functions]


@dataclass(frozen=True, slots=True)
class MultiTurnPlay:
    """Satisfies `Play`."""

    executor: Executor

    async def __call__(
        self, problem: Problem, transcript: Transcript, speaker: Speaker, limits: AgentLimits
    ) -> tuple[Transcript, End]:
        task = MultiTurnCallTask.of(problem)
        services, chat = CallServices(self.executor, task), _without_opening(speaker.chat)
        for turn in range(len(task.turns)):
            if turn:
                transcript = transcript.with_user_turn(chat, said_in_turn(task, turn))
            transcript, end = await _user_turn(transcript, speaker, chat, services, limits)
            if end is not None:
                return transcript, end
        return transcript, End(Outcome.ANSWERED)


async def _user_turn(
    transcript: Transcript, speaker: Speaker, chat: ChatFormat, services: CallServices, limits: AgentLimits
) -> tuple[Transcript, End | None]:
    for _ in range(MAX_STEPS):
        num_left = limits.max_response_tokens - transcript.num_tokens_after(0)
        if num_left <= 0:
            return transcript, End(Outcome.TRUNCATED, f"the budget of {limits.max_response_tokens} tokens ran out")
        turn = await speaker.turn(transcript, num_left)
        if turn.stop_reason is not StopReason.END_OF_TURN:
            return transcript.with_turn(turn), End(OUTCOMES[turn.stop_reason])
        calls = _calls_of(turn, chat)
        if not calls:
            return transcript.with_turn(turn), None
        started_s = speaker.clock()
        results = await services.run(calls)
        answered = with_user_text(turn, chat, tool_responses([result.text for result in results]))
        seconds = speaker.clock() - started_s
        transcript = transcript.with_turn(replace(answered, calls=calls, results=tuple(results), tool_s=seconds))
    return transcript, End(Outcome.TURN_LIMIT, f"it still made calls after {MAX_STEPS} steps of one turn")


def _calls_of(turn: Turn, chat: ChatFormat) -> tuple[ToolCall, ...]:
    text = after_thought(turn.text.removesuffix(chat.end_of_turn))
    return tuple(item.call for item in parse_calls(text, {}) if item.call.name is not None)


def _without_opening(chat: ChatFormat) -> ChatFormat:
    return replace(chat, before_assistant=chat.before_assistant.removesuffix(ASSISTANT_OPENING))


def multi_turn_judge(executor: Executor) -> Judge:
    require_services()

    async def decide(problem: Problem, trace: Trace) -> Judgement:
        task = MultiTurnCallTask.of(problem)
        turns = calls_by_turn(task, trace.turns)
        if len(turns) == len(task.ground_truth):
            is_right, error = await check(executor, task, turns)
        else:
            is_right, error = False, "multi_turn:force_terminated"
        verdict = Verdict.RIGHT if is_right else Verdict.WRONG
        return Judgement(verdict, details={task.category: float(is_right)}, message=error)

    return Judge(decide, lambda problem: {MultiTurnCallTask.of(problem).category: 1.0})


def calls_by_turn(task: MultiTurnCallTask, turns: Sequence[Turn]) -> list[list[list[str]]]:
    """The calls of each step of each user turn. An assistant turn without a call ends the user turn."""
    known = known_names(task)
    ended: list[list[list[str]]] = []
    steps: list[list[str]] = []
    for turn in turns:
        if turn.calls:
            steps.append(_sources(turn, known))
        else:
            ended.append(steps)
            steps = []
    return [*ended, steps] if steps else ended


def _sources(turn: Turn, known: frozenset[str]) -> list[str]:
    return [
        (source_of(call.name or "", call.arguments, known) if result.status in _RUN_BY_SERVICES else None) or NOT_RUN
        for call, result in zip(turn.calls, turn.results, strict=True)
    ]
