"""Random conversations through `transformers` alone: the text and the ids that the model was trained on."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from agent_tokenizers import FAMILIES, fast_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rstar2.agent import ChatFormat, HfTokenizer, PythonTool, Transcript
from rstar2.agent.chat_template import SYSTEM_TEXT
from rstar2.agent.portable_template import portable_template
from rstar2.data import Conversation
from rstar2.extensions import TOOLS
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.train.learning.sft_examples import Example, render_conversation

pytestmark = pytest.mark.property

WORDS = ["sum", " of", "\n", "\n\n", "  ", "42", "é", "漢字", "🙂", "<", "</", '"', "\\", "{{ x }}", "{%", "-%}", "\t"]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=8).map("".join)
SYSTEM_WORDS = (SYSTEM_TEXT, "", ' Say "é" {{ words }} \\n\n🙂 ')
FUNCTIONS = [TOOLS.load(name).schema.as_function() for name in TOOLS]
TINY = "tiny"


def raw_tokenizer(family: str) -> Any:
    if family != TINY:
        return fast_tokenizer(family)
    with tempfile.TemporaryDirectory() as folder:
        build_tiny(Path(folder), "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
        return AutoTokenizer.from_pretrained(folder)


@cache
def trained(family: str, words: str) -> tuple[ChatFormat, Any]:
    """A model's way of writing while it is trained, and its tokenizer as others load it afterwards."""
    tokenizer, exported = HfTokenizer(raw_tokenizer(family), name=family), raw_tokenizer(family)
    chat = ChatFormat.of(tokenizer, words)
    exported.chat_template = portable_template(chat, tokenizer)
    return chat, exported


@st.composite
def said(draw: st.DrawFn) -> dict[str, Any]:
    """What an assistant said: as it is stored here, as a server gives it back, or without any reasoning."""
    reason, rest = draw(texts), draw(texts)
    forms = [f"<reason>{reason}</reason>{rest}", f"\n <reason>{reason}", f"{reason}</reason>{rest}", rest, None]
    calls = [
        {"type": "function", "function": {"name": name, "arguments": {"code": draw(texts), "n": [1.5, None]}}}
        for name in draw(st.lists(st.sampled_from(sorted(TOOLS)), max_size=2))
    ]
    return {"role": "assistant", "content": draw(st.sampled_from(forms))} | ({"tool_calls": calls} if calls else {})


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """It ends with what the assistant is to answer to."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(texts)})
    for _ in range(draw(st.integers(0, 3))):
        messages.append(draw(said()))
        results = [{"role": "tool", "content": draw(texts)} for _ in messages[-1].get("tool_calls", ())]
        is_asked = draw(st.booleans()) or not results
        messages += results + ([{"role": "user", "content": draw(texts)}] if is_asked else [])
    return messages


def harmless(messages: list[dict[str, Any]], chat: ChatFormat) -> list[dict[str, Any]]:
    """No control tokens, which only the agent breaks up."""
    return json.loads(chat.harmless(json.dumps(messages, ensure_ascii=False)))  # type: ignore[no-any-return]


def num_before_last_words(example: Example) -> int:
    return len(example.mask) - example.mask[::-1].index(False)


@pytest.mark.parametrize("words", SYSTEM_WORDS, ids=("default", "none", "odd"))
@pytest.mark.parametrize("family", (*FAMILIES, TINY))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages=conversations(), has_tools=st.booleans())
def test_transformers_writes_what_was_trained_on(
    family: str, words: str, messages: list[dict[str, Any]], has_tools: bool
) -> None:
    chat, exported = trained(family, words)
    messages, tools = harmless(messages, chat), FUNCTIONS if has_tools else []
    answer = {"role": "assistant", "content": "<reason> So it is.</reason>\n<answer>\\boxed{42}</answer>"}
    example = render_conversation(Conversation((*messages, answer), tools=tuple(tools)), chat)
    learnt = example.token_ids
    asked = learnt[: num_before_last_words(example)]

    prompt = exported.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    whole = exported.apply_chat_template([*messages, answer], tools=tools, tokenize=False)
    assert prompt == chat.tokenizer.decode(asked)
    assert whole == chat.tokenizer.decode(learnt)
    ids = exported.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"]
    assert ids == chat.tokenizer.encode(prompt)
    # What is opened by one token, or not spoken before, is not merged with what is said behind it.
    if family == TINY or not any(message["role"] == "assistant" for message in messages):
        assert tuple(ids) == asked


@pytest.mark.parametrize("words", SYSTEM_WORDS, ids=("default", "none", "odd"))
@pytest.mark.parametrize("family", (*FAMILIES, TINY))
@settings(max_examples=20, deadline=None)
@given(question=texts)
def test_the_agent_s_own_prompt_needs_no_message_but_the_user_s(family: str, words: str, question: str) -> None:
    chat, exported = trained(family, words)
    question = chat.harmless(question)
    transcript = Transcript.start(chat, question, [PythonTool.schema])
    ids = exported.apply_chat_template(
        [{"role": "user", "content": question}], tools=[PythonTool.schema.as_function()], add_generation_prompt=True
    )["input_ids"]
    assert tuple(ids) == transcript.prompt_ids


@pytest.mark.parametrize("words", SYSTEM_WORDS, ids=("default", "none", "odd"))
@pytest.mark.parametrize("family", (*FAMILIES, TINY))
def test_it_is_loaded_here_as_the_format_that_it_was_made_of(family: str, words: str) -> None:
    chat, exported = trained(family, words)
    tokenizer = HfTokenizer(exported, name=family)
    again = ChatFormat.of(tokenizer, words)
    for name in ("end_of_turn", "before_end", "before_user", "before_assistant", "system_text", "stop_token_ids"):
        assert getattr(again, name) == getattr(chat, name)
    assert again.before_assistant.count("<reason>") == 1
    for changed in ("", "Other words."):
        ours, theirs = (
            ChatFormat.of(tokenizer, changed),
            ChatFormat.of(HfTokenizer(raw_tokenizer(family), name=""), changed),
        )
        assert ours.prompt_text("Q?", [PythonTool.schema]) == theirs.prompt_text("Q?", [PythonTool.schema])
    assert portable_template(again, tokenizer) == exported.chat_template


@pytest.mark.parametrize("family", (*FAMILIES, TINY))
def test_a_user_s_turn_is_closed_where_no_answer_is_asked_for(family: str) -> None:
    _, exported = trained(family, SYSTEM_TEXT)
    messages = [{"role": "user", "content": "Q?"}]
    closed = exported.apply_chat_template(messages, tokenize=False)
    opened = exported.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    raw = raw_tokenizer(family).apply_chat_template(
        [{"role": "system", "content": SYSTEM_TEXT}, *messages], tokenize=False
    )
    assert closed == raw
    assert opened.startswith(closed)
    assert opened.endswith("<reason>")
