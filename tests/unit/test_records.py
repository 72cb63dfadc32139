"""Traces rebuild what the engine saw."""

import pytest

from rstar2.records import Fault, Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn

pytestmark = pytest.mark.unit


def make_trace() -> Trace:
    first = Turn(
        token_ids=(10, 11),
        log_probs=(-0.5, -1.5),
        text="ab",
        stop_reason=StopReason.END_OF_TURN,
        calls=(ToolCall(raw="{}", name="t"), ToolCall(raw="junk")),
        results=(ToolResult(ToolStatus.OK, "1"), ToolResult(ToolStatus.UNPARSABLE_CALL, "no")),
        appended_ids=(20, 21, 22),
        appended_text="<r>",
    )
    last = Turn(token_ids=(12,), log_probs=(-2.0,), text="c", stop_reason=StopReason.END_OF_TURN)
    return Trace("t0", "p0", (1, 2), "P:", (first, last), Outcome.ANSWERED)


def test_ids_mask_log_probs_and_text_are_aligned() -> None:
    trace = make_trace()
    assert trace.token_ids == (1, 2, 10, 11, 20, 21, 22, 12)
    assert trace.loss_mask == (False, False, True, True, False, False, False, True)
    assert trace.log_probs == (0.0, 0.0, -0.5, -1.5, 0.0, 0.0, 0.0, -2.0)
    assert trace.text == "P:ab<r>c"
    assert trace.response_text == "abc"
    assert (trace.num_response_tokens, trace.num_sampled_tokens) == (6, 3)
    assert (trace.num_tool_calls, trace.num_tool_errors) == (2, 1)


def test_every_status_names_whose_fault_it_was() -> None:
    assert {status for status in ToolStatus if status.fault is Fault.NONE} == {ToolStatus.OK, ToolStatus.NO_OUTPUT}
    assert ToolStatus.INFRASTRUCTURE_FAULT.fault is Fault.INFRASTRUCTURE
    assert not ToolStatus.INFRASTRUCTURE_FAULT.is_tool_error
    assert ToolStatus.TIMED_OUT.is_tool_error


def test_misaligned_log_probs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 token ids but 1 log_probs"):
        Turn(token_ids=(1, 2), log_probs=(-1.0,), text="", stop_reason=StopReason.END_OF_TURN)
