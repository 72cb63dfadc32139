"""How the model of a folder writes a conversation: its tokenizer, its template, and what it was trained to be told.

A model that was trained here carries what it is told before the question in a file of its own, so that whoever asks it
later says the same.
"""

import json
from pathlib import Path

from rstar2.agent.chat_template import SYSTEM_TEXT, ChatFormat
from rstar2.agent.hf_tokenizer import HfTokenizer, TemplateName
from rstar2.errors import UserError

FORMAT_FILE = "agent_format.json"
TEMPLATE_FILE = "chat_template.jinja"
"""Where `transformers` looks for it first."""


def load_chat(folder: Path, template: TemplateName = "model", system_words: str | None = None) -> ChatFormat:
    """`system_words` None: what the model was trained with, or the report's."""
    words = _trained_words(folder) if system_words is None else system_words
    return ChatFormat.of(HfTokenizer.load(folder, template), SYSTEM_TEXT if words is None else words)


def write_format(folder: Path, chat: ChatFormat) -> None:
    """Into a model folder: what the model was trained to be told, and the template that it was trained with."""
    content = json.dumps({"system_text": chat.system_words}, indent=2, ensure_ascii=False)
    (folder / FORMAT_FILE).write_text(content + "\n", encoding="utf-8")
    if isinstance(chat.tokenizer, HfTokenizer):
        (folder / TEMPLATE_FILE).write_text(chat.tokenizer.template_text, encoding="utf-8")


def _trained_words(folder: Path) -> str | None:
    file = folder / FORMAT_FILE
    if not file.is_file():
        return None
    try:
        words = json.loads(file.read_text(encoding="utf-8"))["system_text"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): export the model again, or remove the file") from error
    if not isinstance(words, str):
        raise UserError(f"{file}: system_text must be a string, not {type(words).__name__}")
    return words
