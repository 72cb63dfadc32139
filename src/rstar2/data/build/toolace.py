"""ToolACE: several turns with functions in the system text and calls as `[name(argument=value)]`. Pure."""

import json
import re
from typing import Any

from rstar2.data.build.bracket_calls import is_calls, parse_calls
from rstar2.data.build.functions import first_list, tool_of
from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError
from rstar2.data.build.turns import Message, assistant, call, conversation_of, with_system
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import as_text, ordered_json, require
from rstar2.data.conversation import Conversation
from rstar2.data.rows import Row

_CLOCK = re.compile(r"\b(?:Today is|(?:The )?current (?:time|date) is)\s[^\n]*?(?:\.(?=\s|[A-Z]|$)|$)", re.IGNORECASE)


def convert(row: Row) -> Conversation:
    """Converts a row. The system text gives the functions, and a way to write calls that contradicts ours: of its text
    only the date is kept."""
    system = as_text(require(row, ("system",), "system text")[1], row, "system text")
    tools = [tool_of(function) for function in first_list(system)]
    names = [tool["function"]["name"] for tool in tools]
    turns = _turns(require(row, ("conversations",), "conversations")[1])
    clock = _CLOCK.search(system.partition("[")[0])
    messages = [message for turn in turns for message in _messages(turn, names)]
    return conversation_of(with_system(messages, clock[0] if clock else ""), tools)


def _turns(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(turn, dict) for turn in value):
        raise LeftOutError(LeftOut.FORM, "the conversations are no list of turns")
    return value


def _messages(turn: dict[str, Any], names: list[str]) -> list[Message]:
    speaker, text = turn.get("from"), turn.get("value")
    if not isinstance(text, str):
        raise LeftOutError(LeftOut.FORM, f"a turn of {speaker} has no text")
    if speaker == "user":
        return [{"role": "user", "content": text}]
    if speaker == "tool":
        return [{"role": "tool", "content": result} for result in _results(text)]
    if speaker != "assistant":
        raise LeftOutError(LeftOut.FORM, f"a turn is from {speaker!r}")
    if is_calls(text):
        return [assistant("", [call(*each) for each in parse_calls(text, names)])]
    return [assistant(text)]


def _results(text: str) -> list[str]:
    """One text for each call: `[{"name": …, "results": …}, …]`."""
    try:
        results = json.loads(text)
    except ValueError:
        return [text]
    is_listed = isinstance(results, list) and results and all(isinstance(r, dict) and "results" in r for r in results)
    return [ordered_json(result["results"]) for result in results] if is_listed else [text]


TOOLACE = BuildSource(
    file="sft-function-calls",
    hub=HubSource(
        "Team-ACE/ToolACE",
        "6bda777c88d21e5a204703c1ee45597a8fa4f734",
        ("data.json",),
        {"data.json": "ba12c083fca7e8da48c67ad5b895e495447da7c66e39a2e19742c082e6cb537e"},
    ),
    num_rows=11_300,
    licence="Apache-2.0",
    convert=convert,
)
