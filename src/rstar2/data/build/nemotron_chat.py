"""The chat part of Llama-Nemotron's post-training set: messages as `input`, the response as `output`. Pure."""

import re

from rstar2.data.build.source import BuildSource, LeftOut, LeftOutError
from rstar2.data.build.turns import assistant, conversation_of, with_system
from rstar2.data.catalog_set import HubSource
from rstar2.data.cells import as_text, optional_text, require
from rstar2.data.conversation import Conversation
from rstar2.data.conversation_rows import conversations_of
from rstar2.data.rows import Row

_NO_THOUGHT = re.compile(r"\s*<think>\s*</think>\s*")


def convert(row: Row) -> Conversation:
    """Responses that reason are left out. `system_prompt` only switches reasoning on and off, so it is not kept."""
    output = as_text(require(row, ("output",), "output")[1], row, "output")
    said = output[found.end() :] if (found := _NO_THOUGHT.match(output)) else output
    if optional_text(row, ("reasoning",)) == "on" or "<think>" in said:
        raise LeftOutError(LeftOut.REASONING)
    _, asked = require(row, ("input",), "input")
    turns = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
    (read,) = conversations_of([Row({"messages": [*turns, assistant(said)]}, row.where)], "row")
    return conversation_of(with_system(read.messages))


NEMOTRON_CHAT = BuildSource(
    file="sft-chat",
    hub=HubSource("nvidia/Llama-Nemotron-Post-Training-Dataset", None, ("SFT/chat/chat.jsonl",)),
    num_rows=39_792,
    licence="CC BY 4.0",
    convert=convert,
)
