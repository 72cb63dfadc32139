"""Converts the recorded requests of an episode into its trace."""

from collections.abc import Sequence

from rstar2.agent import ChatFormat
from rstar2.agent.parse import parse_calls
from rstar2.harness.stitch import Call, CallChain, stitched
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn
from rstar2.records.trace import END_OF_TURN_KEY


def trace_of(
    calls: Sequence[Call],
    chat: ChatFormat,
    problem: Problem,
    trace_id: str,
    outcome: Outcome,
    note: str,
    answer: str,
) -> Trace:
    segments = stitched(calls)
    prompt_ids = segments[0].calls[0].prompt_ids if segments else ()
    turns = tuple(
        turn for number, segment in enumerate(segments) for turn in _turns(segment, chat, is_first=number == 0)
    )
    return Trace(
        id=trace_id,
        problem_id=problem.id,
        prompt_ids=prompt_ids,
        prompt_text=chat.tokenizer.decode(prompt_ids),
        turns=turns,
        outcome=outcome,
        answer=answer,
        note=note,
        metadata={END_OF_TURN_KEY: chat.end_of(turns)},
    )


def _turns(segment: CallChain, chat: ChatFormat, *, is_first: bool) -> list[Turn]:
    """A segment's first turn holds its prompt, except in the first segment."""
    turns = []
    for number, (call, appended_ids) in enumerate(zip(segment.calls, segment.appended_ids, strict=True)):
        prompt_ids = call.prompt_ids if number == 0 and not is_first else ()
        turns.append(_turn(call, appended_ids, prompt_ids, chat))
    return turns


def _turn(call: Call, appended_ids: tuple[int, ...], prompt_ids: tuple[int, ...], chat: ChatFormat) -> Turn:
    text = chat.tokenizer.decode(call.token_ids)
    is_whole = call.stop_reason is StopReason.END_OF_TURN
    parsed = parse_calls(text.removesuffix(chat.end_of_turn), {}) if is_whole else ()
    return Turn(
        token_ids=call.token_ids,
        log_probs=call.log_probs,
        entropies=call.entropies,
        text=text,
        stop_reason=call.stop_reason,
        calls=tuple(item.call for item in parsed),
        appended_ids=appended_ids,
        appended_text=chat.tokenizer.decode(appended_ids),
        prompt_ids=prompt_ids,
        prompt_text=chat.tokenizer.decode(prompt_ids),
        policy_version=call.policy_version,
        queue_s=call.queue_s,
        generate_s=call.generate_s,
    )
