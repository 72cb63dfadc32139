"""The calls of one turn, all of them, at the same time.

A call that could not be parsed already has its result. One that fails through our fault is tried again; if that does
not help, its result says so by its status. A mistake of the user's (a sandbox address that is none) is raised.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rstar2.agent.chat_template import ChatFormat
from rstar2.agent.end_rules import AgentLimits
from rstar2.agent.events import CallEnded, CallStarted, Observer
from rstar2.agent.parse import ParsedCall
from rstar2.agent.retry_pause import pause_s
from rstar2.agent.tool import Tool
from rstar2.agent.truncate import cut
from rstar2.errors import UserError
from rstar2.records import Fault, ToolCall, ToolResult, ToolStatus


async def run_calls(
    calls: Sequence[ParsedCall],
    tools: Mapping[str, Tool],
    chat: ChatFormat,
    limits: AgentLimits,
    observer: Observer,
) -> list[ToolResult]:
    """One result a call, in the order of the calls, each cut to what the model may read."""

    async def run(parsed: ParsedCall) -> ToolResult:
        observer(CallStarted(parsed.call))
        result = parsed.error or await _run_with_retries(parsed.call, tools, limits)
        if result.fault is not Fault.INFRASTRUCTURE:
            text, num_cut_chars = cut(chat.harmless(result.text), limits.max_tool_output_tokens, chat.tokenizer)
            result = replace(result, text=text, num_cut_chars=result.num_cut_chars + num_cut_chars)
        observer(CallEnded(parsed.call, result))
        return result

    results = await asyncio.gather(*map(run, calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ToolResult)]


async def _run_with_retries(call: ToolCall, tools: Mapping[str, Tool], limits: AgentLimits) -> ToolResult:
    assert call.name is not None
    for attempt in range(limits.max_fault_retries + 1):
        result, error = await _attempt(tools[call.name], call, limits.tool_deadline_s)
        if result.fault is not Fault.INFRASTRUCTURE or attempt == limits.max_fault_retries:
            return replace(result, num_attempts=attempt + 1)
        await asyncio.sleep(pause_s(attempt, error))
    raise AssertionError("unreachable")


async def _attempt(tool: Tool, call: ToolCall, deadline_s: float) -> tuple[ToolResult, Exception | None]:
    try:
        async with asyncio.timeout(deadline_s):
            result = await tool.call(call.arguments)
        _require_result(result)
        return result, None
    except UserError:
        raise
    except TimeoutError as error:
        reason = f"tool {call.name} did not answer within {deadline_s:g} s"
        return ToolResult(ToolStatus.INFRASTRUCTURE_FAULT, reason), error
    except Exception as error:
        # Whatever a tool raises is not the model's doing: what is, comes back as a result.
        reason = f"tool {call.name} failed: {type(error).__name__}: {error}"
        return ToolResult(ToolStatus.INFRASTRUCTURE_FAULT, reason), error


def _require_result(result: Any) -> None:
    """A tool of the user's may return anything."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"its call returned a {type(result).__name__}, not a ToolResult(ToolStatus.OK, text)")
    status: Any = result.status
    text: Any = result.text
    if not isinstance(status, ToolStatus) or not isinstance(text, str):
        kinds = f"{type(status).__name__} and {type(text).__name__}"
        raise TypeError(f"its call returned a ToolResult of {kinds}, not of a ToolStatus and a text")
