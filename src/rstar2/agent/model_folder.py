"""The chat format of a model folder: its tokenizer, its template and its system text.

A model that was trained here carries its environment, its system text, and whether it spells its tool tags, in a file
of its own, so that later uses match its training. Its chat template, tokenizer and generation settings do the same for
programs that do not know that file.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rstar2.agent.chat_template import GENERAL_SYSTEM_TEXT, SYSTEM_TEXT, ChatFormat
from rstar2.agent.hf_tokenizer import HfTokenizer, TemplateName, ToolTags
from rstar2.agent.portable_template import portable_template
from rstar2.config import EnvironmentSection
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.config import Recipe

FORMAT_FILE = "agent_format.json"
TEMPLATE_FILE = "chat_template.jinja"
"""The file in which `transformers` looks for a chat template first."""
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
"""The file of the chat template in earlier versions of `transformers`."""
GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class AgentFormat:
    """The format that a model was trained with; the defaults are for one that was not trained here."""

    system_text: str | None = None
    tool_tags: ToolTags = "token"
    environment: EnvironmentSection | None = None
    """The task and the tools that the model was trained on."""


def chat_of(recipe: "Recipe", folder: Path) -> ChatFormat:
    """The chat format of a folder's model for the recipe's conversations."""
    agent = recipe.agent
    default = SYSTEM_TEXT if recipe.environment.source == "math" else GENERAL_SYSTEM_TEXT
    return load_chat(folder, agent.template, agent.system_text, agent.tool_tags, default)


def load_chat(
    folder: Path,
    template: TemplateName = "model",
    system_text: str | None = None,
    tool_tags: ToolTags | None = None,
    default_system_text: str = SYSTEM_TEXT,
) -> ChatFormat:
    """The chat format of a folder's model. If `system_text` or `tool_tags` is None, it is the one that the model was
    trained with, or else the default text and tags of one token each."""
    trained = read_format(folder)
    tokenizer = HfTokenizer.load(folder, template, trained.tool_tags if tool_tags is None else tool_tags)
    given = (text for text in (system_text, trained.system_text) if text is not None)
    return ChatFormat.of(tokenizer, next(given, default_system_text))


def write_format(folder: Path, chat: ChatFormat, environment: EnvironmentSection) -> None:
    """Writes into a model folder the format that the model was trained with, for this program and for others."""
    values: dict[str, Any] = {
        "system_text": chat.system_text,
        "environment": environment.model_dump(mode="json", exclude_defaults=True),
    }
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
    """Sets a key of a JSON file, if that exists. A folder of adapters has no such file and uses its base's."""
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
        task = values.get("environment")
        environment = None if task is None else EnvironmentSection.model_validate(task, strict=False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error}): export the model again, or remove the file") from error
    if not isinstance(system_text, str):
        raise UserError(f"{file}: system_text must be a string, not {type(system_text).__name__}")
    if tool_tags not in get_args(ToolTags):
        raise UserError(f"{file}: tool_tags must be one of {', '.join(get_args(ToolTags))}, not {tool_tags!r}")
    return AgentFormat(system_text, tool_tags, environment)
