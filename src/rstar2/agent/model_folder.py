"""How the model of a folder writes a conversation: its tokenizer, its template, and what it was trained to be told.

A model that was trained here carries what it is told before the question, and whether it spells its tool tags, in a
file of its own, so that whoever asks it later does the same.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rstar2.agent.chat_template import SYSTEM_TEXT, ChatFormat
from rstar2.agent.hf_tokenizer import HfTokenizer, TemplateName
from rstar2.agent.tool_tags import ToolTags
from rstar2.errors import UserError

FORMAT_FILE = "agent_format.json"
TEMPLATE_FILE = "chat_template.jinja"
"""Where `transformers` looks for it first."""


@dataclass(frozen=True, slots=True)
class _Trained:
    """What a model was trained with; the defaults for one that was not trained here."""

    system_words: str = SYSTEM_TEXT
    tool_tags: ToolTags = "token"


def load_chat(
    folder: Path,
    template: TemplateName = "model",
    system_words: str | None = None,
    tool_tags: ToolTags | None = None,
) -> ChatFormat:
    """`system_words`, `tool_tags` None: what the model was trained with, or the report's words and tags of one token
    each."""
    trained = _read_format(folder)
    tokenizer = HfTokenizer.load(folder, template, trained.tool_tags if tool_tags is None else tool_tags)
    return ChatFormat.of(tokenizer, trained.system_words if system_words is None else system_words)


def write_format(folder: Path, chat: ChatFormat) -> None:
    """Into a model folder: what the model was trained to be told, and the template that it was trained with."""
    values = {"system_text": chat.system_words}
    if isinstance(chat.tokenizer, HfTokenizer):
        if chat.tokenizer.tool_tags == "text":
            values["tool_tags"] = chat.tokenizer.tool_tags
        (folder / TEMPLATE_FILE).write_text(chat.tokenizer.template_text, encoding="utf-8")
    content = json.dumps(values, indent=2, ensure_ascii=False)
    (folder / FORMAT_FILE).write_text(content + "\n", encoding="utf-8")


def _read_format(folder: Path) -> _Trained:
    file = folder / FORMAT_FILE
    if not file.is_file():
        return _Trained()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        words, tool_tags = values["system_text"], values.get("tool_tags", _Trained().tool_tags)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): export the model again, or remove the file") from error
    if not isinstance(words, str):
        raise UserError(f"{file}: system_text must be a string, not {type(words).__name__}")
    if tool_tags not in get_args(ToolTags):
        raise UserError(f"{file}: tool_tags must be one of {', '.join(get_args(ToolTags))}, not {tool_tags!r}")
    return _Trained(words, tool_tags)
