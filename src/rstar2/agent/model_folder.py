"""How the model of a folder writes a conversation: its tokenizer, its template and its system text.

A model that was trained here carries its tool, its system text, and whether it spells its tool tags, in a file of its
own, so that later uses match its training. Its chat template, tokenizer and generation settings do the same for
programs that do not know that file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rstar2.agent.chat_template import SYSTEM_TEXT, ChatFormat
from rstar2.agent.hf_tokenizer import HfTokenizer, TemplateName, ToolTags
from rstar2.agent.portable_template import portable_template
from rstar2.errors import UserError

FORMAT_FILE = "agent_format.json"
TEMPLATE_FILE = "chat_template.jinja"
"""The file in which `transformers` looks for a chat template first."""
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
"""The file of the chat template in earlier versions of `transformers`."""
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class AgentFormat:
    """What a model was trained with; the defaults for one that was not trained here."""

    system_text: str = SYSTEM_TEXT
    tool_tags: ToolTags = "token"
    tool: str | None = None
    """The name of the one tool that it knows."""


def load_chat(
    folder: Path,
    template: TemplateName = "model",
    system_text: str | None = None,
    tool_tags: ToolTags | None = None,
) -> ChatFormat:
    """`system_text`, `tool_tags` None: what the model was trained with, or the report's text and tags of one token
    each."""
    trained = read_format(folder)
    tokenizer = HfTokenizer.load(folder, template, trained.tool_tags if tool_tags is None else tool_tags)
    return ChatFormat.of(tokenizer, trained.system_text if system_text is None else system_text)


def write_format(folder: Path, chat: ChatFormat, tool: str) -> None:
    """Into a model folder: how the model was trained to hold a conversation, for this program and for others."""
    values = {"system_text": chat.system_text, "tool": tool}
    if isinstance(chat.tokenizer, HfTokenizer):
        if chat.tokenizer.tool_tags == "text":
            values["tool_tags"] = chat.tokenizer.tool_tags
            chat.tokenizer.write_spelled(folder)
        template = portable_template(chat, chat.tokenizer)
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
        _amend(folder / TOKENIZER_CONFIG_FILE, "chat_template", template)
        _amend(folder / GENERATION_FILE, "eos_token_id", list(chat.stop_token_ids))
    content = json.dumps(values, indent=2, ensure_ascii=False)
    (folder / FORMAT_FILE).write_text(content + "\n", encoding="utf-8")


def _amend(file: Path, key: str, value: Any) -> None:
    """Adapters alone have no such file: they are used with that of their base."""
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8")) | {key: value}
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_format(folder: Path) -> AgentFormat:
    file = folder / FORMAT_FILE
    if not file.is_file():
        return AgentFormat()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        system_text, tool_tags = values["system_text"], values.get("tool_tags", AgentFormat().tool_tags)
        tool = values.get("tool")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error}): export the model again, or remove the file") from error
    for name, value in (("system_text", system_text), ("tool", tool or "")):
        if not isinstance(value, str):
            raise UserError(f"{file}: {name} must be a string, not {type(value).__name__}")
    if tool_tags not in get_args(ToolTags):
        raise UserError(f"{file}: tool_tags must be one of {', '.join(get_args(ToolTags))}, not {tool_tags!r}")
    return AgentFormat(system_text, tool_tags, tool)
