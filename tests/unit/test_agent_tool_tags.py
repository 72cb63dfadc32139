"""Tags spelled in ordinary tokens: nothing else about the tokenizer changes, and conversations stay exact."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from rstar2.agent import Agent, ChatFormat, HfTokenizer, PythonTool, Transcript
from rstar2.agent.chat_template import tool_responses
from rstar2.agent.hf_tokenizer import TOOL_TAGS, spell_tags
from rstar2.engine.scripted import ScriptedEngine, replies
from rstar2.errors import UserError
from rstar2.models.tiny import TAGS
from rstar2.records import ToolResult, ToolStatus

pytestmark = pytest.mark.unit

CALL = (
    '<tool_call>\n{"name": "execute_python_code_with_standard_io", '
    '"arguments": {"code": "print(\'</tool_call>\')", "input": ""}}\n</tool_call>'
)
RESULT = tool_responses(["42"])


def byte_level(model: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def in_the_vocabulary(trainer: Any, model: Any) -> Tokenizer:
    """The tags are words of the model's vocabulary, and special tokens besides."""
    tokenizer = byte_level(model)
    tokenizer.train_from_iterator(["some words and more words"], trainer)
    tokenizer.add_tokens([AddedToken("<later>", special=False, normalized=False)])
    return tokenizer


ALPHABET = pre_tokenizers.ByteLevel.alphabet()
SPECIAL = ["<|end|>", *sorted(TOOL_TAGS), "<|pad|>"]
BPE = trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=ALPHABET, show_progress=False)
UNIGRAM = trainers.UnigramTrainer(special_tokens=SPECIAL, initial_alphabet=ALPHABET, show_progress=False)


@pytest.mark.parametrize("trainer, model", [(BPE, models.BPE()), (UNIGRAM, models.Unigram())])
def test_tags_of_the_vocabulary_itself_are_spelled(trainer: Any, model: Any) -> None:
    tokenizer = in_the_vocabulary(trainer, model)
    spelled = spell_tags(tokenizer, TOOL_TAGS)
    ids = spelled.encode(CALL + RESULT).ids
    assert not {tokenizer.token_to_id(tag) for tag in TOOL_TAGS} & set(ids)
    assert spelled.decode(ids, skip_special_tokens=False) == CALL + RESULT
    others = tokenizer.get_vocab().keys() - TOOL_TAGS
    assert {word: spelled.token_to_id(word) for word in others} == {
        word: tokenizer.token_to_id(word) for word in others
    }


def test_tags_are_spelled_and_all_else_keeps_its_ids(tiny_llama: Path) -> None:
    as_token, as_text = HfTokenizer.load(tiny_llama), HfTokenizer.load(tiny_llama, tool_tags="text")
    for tag in TAGS:
        assert len(as_token.encode(tag)) == 1
        assert (len(as_text.encode(tag)) == 1) == (tag not in TOOL_TAGS)
        assert as_text.decode(as_text.encode(tag)) == tag
    text = "<|im_start|>user\nsome words 07 42<reason></answer><|im_end|>"
    assert as_text.encode(text) == as_token.encode(text)
    assert as_text.control_tokens == as_token.control_tokens


class OfTokens(SimpleNamespace):
    """A tokenizer as `transformers` has it, as far as it is looked at."""

    chat_template = "a template"
    eos_token_id = 0

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return dict(enumerate(self.tokens))


def of_tokens(contents: Sequence[str], backend: Tokenizer | None) -> OfTokens:
    tokens = [AddedToken(content, special=True) for content in contents]
    return OfTokens(tokens=tokens, backend_tokenizer=backend)


def test_spelled_tags_are_no_control_tokens() -> None:
    known = of_tokens(SPECIAL, in_the_vocabulary(BPE, models.BPE()))
    assert HfTokenizer(known, name="m").control_tokens == tuple(SPECIAL)
    assert HfTokenizer(known, name="m", tool_tags="text").control_tokens == ("<|end|>", "<|pad|>")


def test_only_a_tokenizer_that_can_be_changed_is_changed() -> None:
    with pytest.raises(UserError, match=r"agent\.tool_tags.*model slow.*</tool_call>"):
        HfTokenizer(of_tokens(["<|end|>", "</tool_call>"], None), name="slow", tool_tags="text")
    HfTokenizer(of_tokens(["<|end|>"], None), name="slow", tool_tags="text")


class EchoTool:
    """Says the code that it is given."""

    schema = PythonTool.schema

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(ToolStatus.OK, arguments["code"])

    async def close(self) -> None:
        pass


async def test_a_conversation_with_calls_is_exact(tiny_llama: Path) -> None:
    tokenizer = HfTokenizer.load(tiny_llama, tool_tags="text")
    chat = ChatFormat.of(tokenizer)
    said = (f"I compute.</reason>{CALL}", r"So.</reason><answer>\boxed{42}</answer>")
    engine = ScriptedEngine(replies(said), tokenizer, chat.end_of_turn_id)
    start = Transcript.start(chat, "6 * 7?", [EchoTool.schema])
    transcript, _ = await Agent(engine, chat).converse(start, [EchoTool()], session="s")
    text = tokenizer.decode(transcript.token_ids)
    assert list(transcript.token_ids) == tokenizer.encode(text)
    result = tool_responses(["print('</tool_call>')"])
    between = f"<|im_end|>\n<|im_start|>user\n{result}<|im_end|>\n<|im_start|>assistant\n<reason>"
    assert text == start.prompt_text + said[0] + between + said[1] + "<|im_end|>"
    tag_ids = {HfTokenizer.load(tiny_llama).encode(tag)[0] for tag in TOOL_TAGS}
    assert tag_ids.isdisjoint(transcript.token_ids)
