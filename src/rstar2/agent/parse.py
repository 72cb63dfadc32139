"""Parses tool calls out of the model's text. Pure, never raises.

A call is `<tool_call>`, one JSON object with the fields `name` and `arguments`, `</tool_call>`. All calls of a text are
found, in order. A wrong one comes back with a typed result whose text says to the model what to change; none is
dropped. The JSON decides where a call ends, so its strings may hold the tags themselves. What a record file could not
store (NaN, 1e999, a thousand nested brackets) is refused here.
"""

import difflib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.agent.tool import ToolSchema
from rstar2.records import ToolCall, ToolResult, ToolStatus

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_NESTING = 32
"""How deep a call may nest objects and lists, itself included: ten times more than tools need, and below any recursion
limit."""

FIRST_WINDOW = 4096
EDGE = 16
"""Only strings and numbers are longer JSON tokens, so an error further from a window's edge is not due to the edge."""

_TAG = re.compile(f"{OPEN}|{CLOSE}")
_SPACE = re.compile(r"\s*")
_FORM = f'Write a call as {OPEN}{{"name": "<tool>", "arguments": {{...}}}}{CLOSE}.'


@dataclass(frozen=True, slots=True)
class ParsedCall:
    call: ToolCall
    error: ToolResult | None = None
    """Why the call cannot be run; None if it can."""


def parse_calls(text: str, tools: Mapping[str, ToolSchema]) -> tuple[ParsedCall, ...]:
    calls: list[ParsedCall] = []
    start = text.find(OPEN)
    if start < 0 and CLOSE in text:
        return (_unparsable(text[: text.index(CLOSE)], f"{CLOSE} stands without {OPEN} before it"),)
    while start >= 0:
        content_start = start + len(OPEN)
        parsed, end = _parse_at(text, content_start, tools)
        calls.append(parsed)
        start = text.find(OPEN, end)
    return tuple(calls)


def _parse_at(text: str, start: int, tools: Mapping[str, ToolSchema]) -> tuple[ParsedCall, int]:
    """The call whose content starts at `start`, and where the search for the next starts."""
    json_start = _end_of_space(text, start)
    tag = _TAG.search(text, start)
    block_end = tag.start() if tag else len(text)
    reason = ""
    try:
        value, json_end = _decode(text, json_start)
    except _RefusedError as error:
        reason = str(error)
    except _MalformedError as error:
        reason = f"its JSON is malformed: {error.message} at character {error.position - start} of the call"
    except RecursionError:
        reason = f"its JSON is nested deeper than {MAX_NESTING} levels"
    except ValueError:
        reason = "its JSON holds a number with too many digits"
    else:
        close = _end_of_space(text, json_end)
        if text.startswith(CLOSE, close):
            return _checked(text[start:close], value, tools), close + len(CLOSE)
        if close < block_end:
            reason = "there is text behind its JSON object; each call needs tags of its own"
        elif close > block_end:
            block_end = close
    if tag is None or not text.startswith(CLOSE, block_end):
        reason = f"it is not closed by {CLOSE}" + (f", and {reason}" if reason else "")
    return _unparsable(text[start:block_end], reason), block_end


def _checked(raw: str, value: Any, tools: Mapping[str, ToolSchema]) -> ParsedCall:
    """Checks a call's JSON, complete and closed, against the form of a call and the tool's schema."""
    if not isinstance(value, dict):
        return _unparsable(raw, f"it is a JSON {_json_type(value)} and not one object")
    for key in ("name", "arguments"):
        if key not in value:
            return _unparsable(raw, f"the field {key!r} is missing")
    if unknown := sorted(value.keys() - {"name", "arguments"}):
        return _unparsable(raw, f"the field {unknown[0][:40]!r} is not part of a call")
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not name:
        return _unparsable(raw, "its name is not a string with something in it")
    if _nesting(value) > MAX_NESTING:
        return _unparsable(raw, f"its JSON is nested deeper than {MAX_NESTING} levels")
    tool = tools.get(name)
    if tool is None:
        call = ToolCall(raw, name, arguments if isinstance(arguments, dict) else {})
        return ParsedCall(call, _refusal(ToolStatus.UNKNOWN_TOOL, _unknown(name, tools)))
    if not isinstance(arguments, dict):
        reason = f"arguments must be a JSON object, not a JSON {_json_type(arguments)}."
        return ParsedCall(ToolCall(raw, name), _refusal(ToolStatus.BAD_ARGUMENTS, f"{name}: {reason}"))
    call = ToolCall(raw, name, arguments)
    problem = tool.mismatch(arguments)
    if problem:
        return ParsedCall(call, _refusal(ToolStatus.BAD_ARGUMENTS, f"{name}: {problem}."))
    return ParsedCall(call)


def _unparsable(raw: str, reason: str) -> ParsedCall:
    return ParsedCall(ToolCall(raw), _refusal(ToolStatus.UNPARSABLE_CALL, f"{reason}. {_FORM}"))


def _refusal(status: ToolStatus, reason: str) -> ToolResult:
    return ToolResult(status, f"The tool call was not run: {reason}")


def _unknown(name: str, tools: Mapping[str, ToolSchema]) -> str:
    near = difflib.get_close_matches(name[:100], tools, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"There is {', '.join(tools) or 'none'}."
    return f"there is no tool named {name[:100]!r}. {hint}"


class _RefusedError(Exception):
    """JSON that Python accepts, but that a record cannot hold or that has a field twice."""


def _no_constant(text: str) -> Any:
    raise _RefusedError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _RefusedError(f"the number {text[:40]} is too large")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RefusedError("a field stands twice in one JSON object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_no_duplicates)


class _MalformedError(Exception):
    def __init__(self, message: str, position: int) -> None:
        self.message = message
        self.position = position


def _decode(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start`, and where it ends.

    The text is read through a window, which grows while its edge may be the cause of an error. To locate an error,
    Python counts the lines of its whole input; in a text full of broken calls that would be quadratic.
    """
    size = FIRST_WINDOW
    while True:
        window = text[start : start + size]
        is_all = start + size >= len(text)
        try:
            value, end = _DECODER.raw_decode(window)
        except json.JSONDecodeError as error:
            is_at_edge = error.msg.startswith("Unterminated") or error.pos > len(window) - EDGE
            if is_all or not is_at_edge:
                raise _MalformedError(error.msg, start + error.pos) from None
        else:
            if is_all or end < len(window):
                return value, start + end
        size *= 4


def _end_of_space(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return start if space is None else space.end()


def _nesting(value: Any) -> int:
    """How deep objects and lists go; stops counting beyond the limit."""
    depth, level = 0, [value]
    while depth <= MAX_NESTING and (level := [item for item in level if isinstance(item, (dict, list))]):
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _json_type(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
