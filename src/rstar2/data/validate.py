r"""Checks that the gold answers of a set score as right under the set's own grader, and that conversations can be
learnt from.

A gold is put where a model would put it, into `<answer>\boxed{…}</answer>`, and graded like any response. A problem
without a gold is checked for what its grader will need: IFEval's checks and their arguments, BFCL's right calls among
the functions on offer, a prompt for the judge. A conversation is checked for its form: something to learn, every tool
result after a call, every call of a tool that it declares.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rstar2.data.benchmarks import FunctionCallTask, InstructionTask
from rstar2.data.benchmarks.function_calls import WITHOUT_GOLD
from rstar2.data.catalog_set import Grading
from rstar2.data.conversation import Conversation
from rstar2.grading import Grader
from rstar2.records import Problem, Verdict

NUM_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Failure:
    """A problem whose gold does not score, or a conversation that cannot be learnt from, and why."""

    problem_id: str
    """The id of the problem or the conversation."""
    answer: str
    reason: str


async def validate(
    problems: Sequence[Problem],
    grading: Grading,
    grader: Grader,
    on_done: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """The problems whose gold fails, in the set's order."""
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def check(problem: Problem) -> Failure | None:
        async with places:
            reason = await _why_wrong(problem, grading, grader)
        on_done()
        return None if reason is None else Failure(problem.id, problem.answer, reason)

    return [failure for failure in await asyncio.gather(*map(check, problems)) if failure is not None]


def validate_conversations(conversations: Sequence[Conversation]) -> list[Failure]:
    """The conversations that cannot be learnt from, in the set's order."""
    faults = ((conversation, _conversation_fault(conversation)) for conversation in conversations)
    return [Failure(conversation.id, "", reason) for conversation, reason in faults if reason is not None]


def _conversation_fault(conversation: Conversation) -> str | None:
    messages = conversation.messages
    if not any(message["role"] == "user" for message in messages):
        return "no message is the user's: nothing is asked"
    spoken = [message for message in messages if message["role"] == "assistant"]
    if not any(message["content"].strip() or message.get("tool_calls") for message in spoken):
        return "every message of the assistant is empty: there is nothing to learn"
    declared = {tool["function"].get("name") for tool in conversation.tools}
    num_open_calls = 0
    for number, message in enumerate(messages, start=1):
        calls = message.get("tool_calls", ())
        if message["role"] == "assistant":
            num_open_calls = len(calls)
        elif message["role"] == "tool":
            num_open_calls -= 1
            if num_open_calls < 0:
                return f"message {number} is a tool result, and no call comes before it"
        unknown = [call["function"]["name"] for call in calls if call["function"]["name"] not in declared]
        if unknown and declared:
            return f"message {number} calls {unknown[0]}, which is not among the tools"
    return None


async def _why_wrong(problem: Problem, grading: Grading, grader: Grader) -> str | None:
    match grading:
        case Grading.ANSWER:
            grade = await grader.grade(rf"<answer>\boxed{{{problem.answer}}}</answer>", gold=problem.answer)
            if grade.verdict is Verdict.RIGHT:
                return None
            return f"{grade.verdict} by {grade.method}" + (f": {grade.message}" if grade.message else "")
        case Grading.INSTRUCTIONS:
            return _instructions_fault(InstructionTask.of(problem))
        case Grading.CALLS:
            return _calls_fault(FunctionCallTask.of(problem))
        case Grading.MULTI_TURN_CALLS | Grading.JUDGE | Grading.ENVIRONMENT | Grading.NOTHING:
            return None if problem.problem else "the prompt is empty"


def _instructions_fault(task: InstructionTask) -> str | None:
    if not task.instruction_ids:
        return "there is nothing to check"
    if any(":" not in name for name in task.instruction_ids):
        return "a check has no group in its name"
    return None


def _calls_fault(task: FunctionCallTask) -> str | None:
    if not task.functions and task.category not in WITHOUT_GOLD:
        return "no functions are on offer"
    if task.unknown_names:
        return f"the right call is of {task.unknown_names[0]}, which is not on offer"
    return None
