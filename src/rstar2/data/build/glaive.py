"""Glaive function calling v2: a whole conversation as one text, with `USER:`, `ASSISTANT:` and `FUNCTION RESPONSE:`.
Pure."""

import json
import re
from collections.abc import Iterator
from typing import Any

from rstar2.data.build.functions import objects_in_a_row, tool_of
from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError
from rstar2.data.build.turns import Message, assistant, call, conversation_of, with_system
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import as_text, require
from rstar2.data.conversation import Conversation
from rstar2.data.rows import Row

_SPEAKER = re.compile(r"(?:^|\n[^\S\n]*\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
"""A speaker's name after an empty line, because the names also occur inside texts."""
_CALL = "<functioncall>"
_END = "<|endoftext|>"
_QUOTED = re.compile(r'\{\s*"name":\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments":\s*\'(.*)\'\s*\}', re.DOTALL)


def convert(row: Row) -> Conversation:
    """Converts a row. Functions in the system text become tools in its place; a system text without functions stays."""
    system = as_text(require(row, ("system",), "system text")[1], row, "system text").removeprefix("SYSTEM:").strip()
    start = system.find("{")
    tools = [tool_of(function) for function in objects_in_a_row(system[start:])] if start >= 0 else []
    chat = as_text(require(row, ("chat",), "chat")[1], row, "chat")
    messages = with_system(list(_messages(chat)), "" if tools else system)
    return conversation_of(messages, tools)


def _messages(chat: str) -> Iterator[Message]:
    before, *parts = _SPEAKER.split(chat)
    if before.strip() or not parts:
        raise LeftOutError(LeftOut.FORM, "the text does not begin with a speaker")
    last = ""
    for speaker, said in zip(parts[::2], parts[1::2], strict=True):
        text = said.strip()
        if speaker == "ASSISTANT":
            text = text.removesuffix(_END).strip()
        # The set has this mark in place of every "AI:", even in the middle of texts.
        if _END in text or speaker == last == "ASSISTANT":
            raise LeftOutError(LeftOut.FORM, "a turn is cut in two")
        last = speaker
        if speaker == "ASSISTANT":
            spoken, *calls = text.split(_CALL)
            yield assistant(spoken.strip(), [_call(each.strip()) for each in calls])
        else:
            yield {"role": "user" if speaker == "USER" else "tool", "content": text}


def _call(text: str) -> dict[str, Any]:
    """Reads a call. Its arguments are JSON between single quotes, which no JSON parser accepts, an object, or JSON in a
    text."""
    try:
        if quoted := _QUOTED.fullmatch(text):
            read = {"name": json.loads(quoted[1]), "arguments": quoted[2].replace(r"\'", "'")}
        else:
            read = json.loads(text, parse_constant=_refused)
        arguments = read["arguments"]
        if isinstance(arguments, str):
            # Some have line breaks in their texts.
            arguments = json.loads(arguments, strict=False, parse_constant=_refused)
    except (ValueError, TypeError, KeyError) as error:
        raise LeftOutError(LeftOut.BAD_CALL, str(error)) from error
    if not isinstance(arguments, dict) or not isinstance(read.get("name"), str):
        raise LeftOutError(LeftOut.BAD_CALL, "a call needs a name and an object of arguments")
    return call(read["name"], arguments)


def _refused(constant: str) -> Any:
    """Refuses Infinity and NaN, which are not JSON though Python's parser accepts them."""
    raise ValueError(f"{constant} is not JSON")


GLAIVE = BuildSource(
    file="sft-function-calls",
    hub=HubSource(
        "glaiveai/glaive-function-calling-v2",
        "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
        ("glaive-function-calling-v2.json",),
        {"glaive-function-calling-v2.json": "e9b5d671812b5ca2fbd7b625a37d5c99a19576c37252cdc806defe256aea6dad"},
    ),
    num_rows=112_960,
    licence="Apache-2.0",
    convert=convert,
)
