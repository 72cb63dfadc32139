"""Converts rows to conversations in OpenAI's form, from that form, ShareGPT's (`from`, `value`) or Alpaca's
(`instruction`, `input`, `output`). Pure.

Invariant: every message has a known role; arguments of tool calls are objects, never JSON in a string; at least one
message is the assistant's, or there would be nothing to learn.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from rstar2.data.cells import as_text, compact_json, find, optional_text, require
from rstar2.data.conversation import Conversation
from rstar2.data.mistakes import OnMistake, raise_it
from rstar2.data.problem_rows import ID_COLUMNS, SOURCE_COLUMNS, require_new_id
from rstar2.data.rows import Row
from rstar2.errors import UserError

MESSAGE_COLUMNS = ("messages", "conversations")
ROLES = ("system", "user", "assistant", "tool")

_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "observation": "tool",
    "tool": "tool",
}
_SHAREGPT_CALL = "function_call"


def conversations_of(rows: Iterable[Row], source: str, on_mistake: OnMistake = raise_it) -> Iterator[Conversation]:
    """One conversation for each row; a row without an id gets one from its place. `on_mistake` gets each unusable
    row."""
    seen: dict[str, str] = {}
    for number, row in enumerate(rows):
        found_id = find(row, ID_COLUMNS)
        conversation_id = f"{source}/{number}" if found_id is None else str(found_id[1])
        try:
            require_new_id(conversation_id, row, seen)
            yield _conversation_of(row, conversation_id, source)
        except UserError as error:
            on_mistake(error)


def _conversation_of(row: Row, conversation_id: str, source: str) -> Conversation:
    messages = _from_alpaca(row) or _messages(row)
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{row.where}: no message is the assistant's, so there is nothing to learn; drop the row")
    return Conversation(messages, _tools(row), conversation_id, optional_text(row, SOURCE_COLUMNS) or source)


def holds_conversation(row: Row) -> bool:
    return find(row, MESSAGE_COLUMNS) is not None or _from_alpaca(row) is not None


def _messages(row: Row) -> tuple[dict[str, Any], ...]:
    _, raw_messages = require(row, MESSAGE_COLUMNS, "messages")
    return tuple(_message(raw, row) for raw in _list(raw_messages, row, "messages"))


def _from_alpaca(row: Row) -> tuple[dict[str, Any], ...] | None:
    instruction, output = find(row, ("instruction",)), find(row, ("output",))
    if instruction is None or output is None:
        return None
    given = find(row, ("input",))
    asked = as_text(instruction[1], row, "instruction")
    if given is not None:
        asked += "\n\n" + as_text(given[1], row, "input")
    return {"role": "user", "content": asked}, {"role": "assistant", "content": as_text(output[1], row, "output")}


def _tools(row: Row) -> tuple[dict[str, Any], ...]:
    found = find(row, ("tools",))
    tools = () if found is None else tuple(_list(found[1], row, "tools"))
    if not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{row.where}: tools must be objects in OpenAI's form")
    # Some sets list a function itself, not inside {"type": "function", "function": …}.
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools)


def _list(value: Any, row: Row, what: str) -> list[Any]:
    """The value as a list. It may be JSON in a string, which is how Parquet files keep lists of unlike objects."""
    if isinstance(value, str):
        value = _loaded(value, row, what)
    if not isinstance(value, list):
        raise UserError(f"{row.where}: {what} must be a list, not {type(value).__name__}")
    return value


def _message(raw: Any, row: Row) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise UserError(f"{row.where}: a message must be an object, not {type(raw).__name__}")
    if "role" not in raw and "from" in raw:
        return _from_sharegpt(raw, row)
    # Parquet fills every key that any message has; null means not there.
    message = {key: value for key, value in raw.items() if value is not None}
    role = message.get("role")
    if role not in ROLES:
        raise UserError(f"{row.where}: a message's role must be one of {', '.join(ROLES)}, not {role!r}")
    if not isinstance(message.setdefault("content", ""), str):
        raise UserError(f"{row.where}: a message's content must be a text, not {type(message['content']).__name__}")
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = [_call(call, row) for call in _list(calls, row, "tool_calls")]
    return message


def _call(call: Any, row: Row) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UserError(f"{row.where}: a tool call must have a function with a name, as in OpenAI's form")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _loaded(arguments, row, "arguments of a tool call")
    if not isinstance(arguments, dict):
        raise UserError(f"{row.where}: the arguments of a tool call must be an object")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _from_sharegpt(raw: dict[str, Any], row: Row) -> dict[str, Any]:
    speaker, value = raw["from"], raw.get("value")
    content = value if isinstance(value, str) else compact_json(value)
    if speaker == _SHAREGPT_CALL:
        calls = _loaded(content, row, "function_call")
        functions = calls if isinstance(calls, list) else [calls]
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [_call({"function": function}, row) for function in functions],
        }
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        raise UserError(f"{row.where}: a message is from {speaker!r}; known are {', '.join(_SHAREGPT_ROLES)}")
    return {"role": _SHAREGPT_ROLES[speaker], "content": content}


def _loaded(text: str, row: Row, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{row.where}: the {what} are not JSON ({error})") from error
