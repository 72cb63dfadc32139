"""Runs the calls of one turn, all at the same time.

A call that could not be parsed already has its result. A call that fails through our fault is retried; if it keeps
failing, the status of its result says so. A user's mistake, such as a wrong sandbox address, is raised.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rstar2.agent.chat_template import ChatFormat
from rstar2.agent.end_rules import AgentLimits
from rstar2.agent.events import CallEnded, CallStarted, Observer
from rstar2.agent.parse import ParsedCall
from rstar2.agent.retry import with_retries
from rstar2.agent.tool import Tool
from rstar2.engine.protocol import Tokenizer
from rstar2.errors import EnvironmentCodeError, InfrastructureError, UserError
from rstar2.records import Fault, ToolCall, ToolResult, ToolStatus

LONGEST_TOKEN_CHARS = 16
"""`cut` tokenizes only this many characters for each allowed token, from either end. Tokens are shorter except for runs
of spaces, and a megabyte of output must not cost a second of tokenizing."""
MAX_FAULT_CHARS = 4000
"""How much of the message of an infrastructure fault is kept."""


async def run_calls(
    calls: Sequence[ParsedCall],
    tools: Mapping[str, Tool],
    chat: ChatFormat,
    limits: AgentLimits,
    observer: Observer,
) -> list[ToolResult]:
    """One result for each call, in their order, each cut to what the model may read."""

    async def run(parsed: ParsedCall) -> ToolResult:
        observer(CallStarted(parsed.call))
        result = parsed.error or await _run_with_retries(parsed.call, tools, limits)
        if result.fault is not Fault.INFRASTRUCTURE:
            text, num_cut_chars = _readable(result.text, chat, limits.max_tool_output_tokens)
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
    tool = tools[call.name]
    failures: list[InfrastructureError] = []
    try:
        result = await with_retries(
            lambda: _run_once(tool, call, limits.tool_deadline_s), limits.max_fault_retries, on_retry=failures.append
        )
    except InfrastructureError as error:
        result = ToolResult(ToolStatus.INFRASTRUCTURE_FAULT, str(error)[:MAX_FAULT_CHARS])
    return replace(result, num_attempts=len(failures) + 1)


async def _run_once(tool: Tool, call: ToolCall, deadline_s: float) -> ToolResult:
    """Runs a call once. InfrastructureError if it failed through our fault."""
    try:
        async with asyncio.timeout(deadline_s):
            result = await tool.call(call.arguments)
        _require_result(result)
    except (UserError, EnvironmentCodeError):
        raise
    except TimeoutError as error:
        raise InfrastructureError(f"tool {call.name} did not answer within {deadline_s:g} s") from error
    except Exception as error:
        # A tool returns what the model did wrong as a result. Whatever it raises is not the model's doing.
        raise InfrastructureError(f"tool {call.name} failed: {type(error).__name__}: {error}") from error
    if result.fault is Fault.INFRASTRUCTURE:
        raise InfrastructureError(result.text)
    return result


def _require_result(result: Any) -> None:
    """TypeError unless it is a `ToolResult` of the right kinds: a user's tool may return anything."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"its call returned a {type(result).__name__}, not a ToolResult(ToolStatus.OK, text)")
    status: Any = result.status
    text: Any = result.text
    if not isinstance(status, ToolStatus) or not isinstance(text, str):
        kinds = f"{type(status).__name__} and {type(text).__name__}"
        raise TypeError(f"its call returned a ToolResult of {kinds}, not of a ToolStatus and a text")


def _readable(text: str, chat: ChatFormat, max_tokens: int) -> tuple[str, int]:
    """The text as the model reads it, and how many of its characters were cut. Of a text of 100 MB only the ends are
    looked at: the rest would be cut anyway."""
    end = 2 * max_tokens * LONGEST_TOKEN_CHARS  # twice what `cut` reads, so that no control token is split there
    if len(text) <= 2 * end:
        return cut(chat.harmless(text), max_tokens, chat.tokenizer)
    ends = chat.harmless(text[:end]) + chat.harmless(text[-end:])
    return cut(ends, max_tokens, chat.tokenizer, num_left_out=len(text) - 2 * end)


def cut(text: str, max_tokens: int, tokenizer: Tokenizer, num_left_out: int = 0) -> tuple[str, int]:
    """The text in at most `max_tokens` tokens, and how many of its characters were cut. Head and tail stay, and a line
    between them says how much is missing. `num_left_out` characters were left out of the middle before."""
    if len(text) < max_tokens and text.isascii():  # no character is more than one token
        return text, 0
    window = max_tokens * LONGEST_TOKEN_CHARS
    if len(text) <= 2 * window and len(tokenizer.encode(text)) <= max_tokens:
        return text, 0
    head_ids, tail_ids = tokenizer.encode(text[:window]), tokenizer.encode(text[-window:])
    num_kept = max_tokens
    while num_kept > 0:
        head = _starting(text, tokenizer.decode(head_ids[: num_kept - num_kept // 2]))
        tail = _ending(text[len(head) :], tokenizer.decode(tail_ids[max(0, len(tail_ids) - num_kept // 2) :]))
        num_cut_chars = num_left_out + len(text) - len(head) - len(tail)
        shortened = f"{head}\n[... {num_cut_chars} characters cut ...]\n{tail}"
        excess = len(tokenizer.encode(shortened)) - max_tokens
        if excess <= 0:
            return shortened, num_cut_chars
        num_kept -= excess
    return "", num_left_out + len(text)


def _starting(text: str, piece: str) -> str:
    """The longest start of `piece` that `text` starts with: a cut between tokens may split a character."""
    while not text.startswith(piece):
        piece = piece[:-1]
    return piece


def _ending(text: str, piece: str) -> str:
    while not text.endswith(piece):
        piece = piece[1:]
    return piece
