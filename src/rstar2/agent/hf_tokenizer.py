"""A Hugging Face folder's tokenizer and chat template for the agent. Needs the `train` extra; no weights."""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from rstar2.agent.chat_template import QWEN_TEMPLATE
from rstar2.agent.parse import CLOSE, OPEN
from rstar2.engine.protocol import Message
from rstar2.errors import UserError

ToolTags = Literal["token", "text"]
"""How the tags around calls and results are written. token: one token each, where the tokenizer has such tokens. text:
spelled in ordinary tokens. A tokenizer may have a token for a tag that its model never saw. A model whose embedding and
head are frozen cannot learn to write that token, but it can learn the spelled tag."""

TOOL_TAGS = frozenset({OPEN, CLOSE, "<tool_response>", "</tool_response>"})
TemplateName = Literal["model", "qwen"]
"""model: the template of the tokenizer itself. qwen: Qwen's, for models that come without one."""

_FILES_WITH_TOKENS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files beside tokenizer.json whose tokens are added to it when it is loaded."""


def spelled_name(token_id: int) -> str:
    """The name that the token of a spelled tag gets, so that its id stays taken."""
    return f"<|spelled_{token_id}|>"


def spell_tags(backend: Any, tags: Collection[str]) -> Any:
    """The `tokenizers.Tokenizer` without tokens for these tags. No token changes its id: the tags' tokens keep theirs
    under meaningless names."""
    from tokenizers import Tokenizer

    content = json.loads(backend.to_str())
    # An added token is renamed and not removed: those after it get new ids when a tokenizer is read.
    names = {token["content"]: spelled_name(token["id"]) for token in content["added_tokens"]}
    names = {tag: name for tag, name in names.items() if tag in tags}
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        content["model"]["vocab"] = {names.get(word, word): token_id for word, token_id in vocabulary.items()}
    else:  # of a unigram model: pairs of a word and its score, in the order of their ids
        content["model"]["vocab"] = [[names.get(word, word), score] for word, score in vocabulary]
    spelled = Tokenizer.from_str(json.dumps(content))
    known = {names.get(word, word): token_id for word, token_id in backend.get_vocab().items()}
    assert spelled.get_vocab() == known, "another token than those of the tags has changed"
    return spelled


class HfTokenizer:
    """Satisfies `ChatTokenizer`."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str,
        template: TemplateName = "model",
        tool_tags: ToolTags = "token",
        stop_ids: Sequence[int] = (),
        folder: Path | None = None,
    ) -> None:
        if template == "qwen":
            tokenizer.chat_template = QWEN_TEMPLATE
        if not tokenizer.chat_template:
            raise UserError(
                f"model {name} has no chat template, so it cannot hold a conversation: use an instruction-tuned model, "
                f"or Qwen's template with --template qwen (agent.template in a recipe)"
            )
        self._tokenizer = tokenizer
        self._backend = _plain_backend(tokenizer)
        self._name = name
        self._folder = folder
        self.tool_tags = tool_tags
        added = tokenizer.added_tokens_decoder.values()
        known = {token.content for token in added}
        self._spelled = TOOL_TAGS & known if tool_tags == "text" else frozenset()
        if self._spelled:
            if self._backend is None:
                raise UserError(
                    f'agent.tool_tags cannot be "text" for model {name}: it has no tokenizer.json, the format of '
                    f"the tokenizers library, and no other tokenizer can be made to spell {min(self._spelled)}"
                )
            self._backend = spell_tags(self._backend, self._spelled)
        control = (token.content for token in added if token.special)
        self.control_tokens = tuple(token for token in control if token not in self._spelled)
        eos_id = tokenizer.eos_token_id
        self.stop_token_ids = tuple(dict.fromkeys([*([] if eos_id is None else [eos_id]), *stop_ids]))

    @classmethod
    def load(cls, folder: Path, template: TemplateName = "model", tool_tags: ToolTags = "token") -> Self:
        """Loads a folder's tokenizer. UserError if there is none, or one without a chat template."""
        try:
            make = _tokenizer_class(folder)
        except ImportError:
            raise UserError("a model's tokenizer needs transformers: run `pip install 'rstar2[train]'`") from None
        try:
            tokenizer = make.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # reading a damaged file may raise anything
            reason = str(error).partition("\n")[0]
            raise UserError(f"{folder} holds no tokenizer that can be loaded: {reason}") from error
        stop_ids = _generation_stops(folder)
        return cls(
            tokenizer, name=folder.name, template=template, tool_tags=tool_tags, stop_ids=stop_ids, folder=folder
        )

    def write_spelled(self, target: Path) -> None:
        """Writes the tokenizer's files if it spells tags that the original has tokens for, so that other programs spell
        them too."""
        if not self._spelled:
            return
        assert self._backend is not None and self._folder is not None
        names = {tag: spelled_name(self._tokenizer.convert_tokens_to_ids(tag)) for tag in self._spelled}
        for file in (self._folder / name for name in _FILES_WITH_TOKENS):
            if file.is_file():
                text = file.read_text(encoding="utf-8")
                for tag, name in names.items():
                    text = text.replace(json.dumps(tag), json.dumps(name))
                (target / file.name).write_text(text, encoding="utf-8")
        (target / "tokenizer.json").write_text(self._backend.to_str(pretty=True), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=False).ids)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def encode_document(self, text: str) -> list[int]:
        """Like `encode`, with the tokens that the tokenizer itself puts around a text, such as one for its
        beginning."""
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=True).ids)
        ids: list[int] = self._tokenizer(text, verbose=False)["input_ids"]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._backend is not None:
            return str(self._backend.decode(list(token_ids), skip_special_tokens=False))
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def render(self, messages: Sequence[Message], *, opens_turn: bool = True) -> str:
        """The conversation as text. It has a system turn only if `messages` has one: an empty `system_text` keeps our
        own templates from adding one."""
        from jinja2 import TemplateError

        conversation = [dict(message) for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=opens_turn, system_text=""
            )
        except TemplateError as error:
            raise UserError(
                f"the chat template of model {self._name} refuses a conversation of system, user and assistant turns "
                f"({error}): use Qwen's with --template qwen (agent.template in a recipe)"
            ) from None
        return text

    def render_request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], values: Mapping[str, Any]
    ) -> str:
        """The conversation of a server's caller, rendered as other servers do: with tools, calls and their results in
        OpenAI's form, and the template's own system text if the caller gives none. `values` go to the template."""
        # A caller must not choose the template itself: it is a program.
        if reserved := values.keys() & inspect.signature(self._tokenizer.apply_chat_template).parameters.keys():
            raise UserError(f"chat_template_kwargs: {min(reserved)} is not a value of the template; leave it out")
        given = {**values, "tokenize": False, "add_generation_prompt": True}
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tools=list(tools) or None, **given
            )
        except Exception as error:  # a template may raise anything for messages that it was not written for
            reason = str(error).partition("\n")[0]
            raise UserError(f"messages: the chat template of model {self._name} refuses them ({reason})") from None
        return text


def _tokenizer_class(folder: Path) -> Any:
    """The tokenizer class of a folder: `AutoTokenizer`, or the class that it would choose where that is known.
    `AutoTokenizer` imports the configurations of all models to choose, which takes seconds."""
    try:
        model = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        is_known = (
            model["model_type"] == "llama"
            and settings["tokenizer_class"] == "PreTrainedTokenizerFast"
            and "auto_map" not in settings
            and (folder / "tokenizer.json").is_file()
        )
    except (OSError, ValueError, KeyError, TypeError):
        is_known = False
    if is_known:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _plain_backend(tokenizer: Any) -> Any | None:
    """The tokenizer inside, which gives the same ids in a fifth of the time; None if there is none. Truncation and
    padding, which its file may ask for, are off, as they are by default in `transformers`."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    return backend


def _generation_stops(folder: Path) -> list[int]:
    """The stop ids of the model's own generation settings: often more than the tokenizer's one."""
    file = folder / "generation_config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error}): get or export the model again, or remove the file") from error
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise UserError(f"{file}: eos_token_id must be an id or a list of ids, not {found!r}")
    return ids
