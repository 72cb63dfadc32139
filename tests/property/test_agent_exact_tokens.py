"""Random conversations of three model families: every id is where it belongs, and none was ever made twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from agent_tokenizers import FAMILIES, family_tokenizer, fast_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstar2.agent import Agent, AgentLimits, ChatFormat, HfTokenizer, ToolSchema, Transcript
from rstar2.agent.chat_template import ASSISTANT_OPENING, SYSTEM_TEXT, with_tools
from rstar2.agent.incremental import TextStream
from rstar2.agent.run_calls import cut
from rstar2.engine import Chunk, EngineLoad, Sampling
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.errors import UserError
from rstar2.records import Outcome, Problem, StopReason, ToolResult, ToolStatus, Trace
from rstar2.records.codec import decode, encode

pytestmark = pytest.mark.property

WORDS = [
    "sum",
    " of",
    "\n",
    "\n\n",
    "  ",
    "42",
    "é",
    "漢字",
    "🙂",
    "<",
    "</",
    "|",
    "def f(x):\n    return x",
    '"',
    "\\",
    "\t",
]
texts = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=6)), max_size=8).map("".join)


@dataclass
class EchoTool:
    """Says what the test wants it to say."""

    outputs: list[str]
    schema: ClassVar[ToolSchema] = ToolSchema(
        "echo", "Say it.", {"type": "object", "properties": {"index": {"type": "integer"}}, "required": ["index"]}
    )

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(ToolStatus.OK, self.outputs[arguments["index"]])

    async def close(self) -> None:
        pass


@dataclass
class DictatedEngine:
    """Gives the very ids that the test chose, which no tokenizer would choose, and notes what it was asked with."""

    turns: list[tuple[int, ...]]
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    async def generate(
        self, session: str, token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> AsyncIterator[Chunk]:
        ids = self.turns[len(self.prompts)]
        self.prompts.append(tuple(token_ids))
        assert session
        assert sampling.stop_token_ids
        assert len(ids) <= max_tokens
        middle = len(ids) // 2
        yield Chunk(ids[:middle], tuple(-float(i) for i in range(middle)))
        rest = tuple(-float(i) for i in range(middle, len(ids)))
        yield Chunk(ids[middle:], rest, stop_reason=StopReason.END_OF_TURN)

    def load(self) -> EngineLoad:
        raise NotImplementedError

    async def cancel(self, session: str) -> None: ...

    async def release(self, session: str) -> None: ...

    async def close(self) -> None: ...


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[tuple[list[str], list[str]]]]:
    """A question, and turns: pieces of the model's text, and what its calls return. The last turn makes no calls."""
    turn = st.tuples(st.lists(texts, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=3))
    turns = draw(st.lists(turn, max_size=3))
    answer = draw(st.lists(texts, min_size=1, max_size=4))
    return draw(texts), [*turns, (answer, [])]


def pieces_of(said: list[str], num_calls: int, first_output: int) -> list[str]:
    """What the model says in one turn, ending in no white space, which Llama's template would trim."""
    calls = [
        f"<tool_call>{json.dumps({'name': 'echo', 'arguments': {'index': first_output + index}})}</tool_call>"
        for index in range(num_calls)
    ]
    clean = [piece.replace("tool_call", "").replace("think", "") for piece in said]
    return [*clean, *calls, "."]


def play(family: str, question: str, turns: list[tuple[list[str], list[str]]]) -> tuple[Trace, DictatedEngine]:
    tokenizer = family_tokenizer(family)
    chat = ChatFormat.of(tokenizer)
    outputs = [output for _, results in turns for output in results]
    dictated, first = [], 0
    for said, results in turns:
        # Each piece is tokenized by itself: together they are a tokenization that the tokenizer would not give.
        pieces = [chat.harmless(piece) for piece in pieces_of(said, len(results), first)]
        dictated.append((*(token for piece in pieces for token in tokenizer.encode(piece)), chat.end_of_turn_id))
        first += len(results)
    engine = DictatedEngine(dictated)
    agent = Agent(engine, chat, AgentLimits(max_turns=8, max_response_tokens=100_000, max_tool_output_tokens=10_000))
    trace = asyncio.run(agent.rollout(Problem("p", question, ""), [EchoTool(outputs)]))
    return trace, engine


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_every_id_is_where_one_rendering_has_it(
    family: str, conversation: tuple[str, list[tuple[list[str], list[str]]]]
) -> None:
    question, turns = conversation
    tokenizer = family_tokenizer(family)
    chat = ChatFormat.of(tokenizer)
    trace, engine = play(family, question, turns)
    assert trace.outcome is Outcome.ANSWERED

    # The whole conversation, rendered by the template itself in one go. A template opens its last assistant turn in
    # ways of its own (Qwen3 thinks there), so the rendering ends before it and the last turn is put behind.
    messages = [
        {"role": "system", "content": with_tools(SYSTEM_TEXT, [EchoTool.schema.as_function()])},
        {"role": "user", "content": chat.harmless(question.strip())},
    ]
    for turn in trace.turns[:-1]:
        messages.append({"role": "assistant", "content": ASSISTANT_OPENING + turn.text.removesuffix(chat.end_of_turn)})
        responses = [f"<tool_response>\n{result.text}\n</tool_response>" for result in turn.results]
        messages.append({"role": "user", "content": "\n".join(responses)})
    rendering = tokenizer.render(messages) + ASSISTANT_OPENING + trace.turns[-1].text
    assert tokenizer.decode(trace.token_ids) == trace.text == rendering

    # All and only the model's own tokens are learned from, exactly as the engine made them.
    own = [token for token, is_own in zip(trace.token_ids, trace.loss_mask, strict=True) if is_own]
    assert own == [token for turn in engine.turns for token in turn]
    assert [turn.token_ids for turn in trace.turns] == engine.turns
    learned = [value for value, is_own in zip(trace.log_probs, trace.loss_mask, strict=True) if is_own]
    assert learned == [-float(i) for turn in engine.turns for i in range(len(turn))]

    # The engine saw one growing sequence: each prompt starts with the one before it and what the engine made of it.
    for index, (before, after) in enumerate(zip(engine.prompts, engine.prompts[1:], strict=False)):
        seen = before + engine.turns[index]
        assert after[: len(seen)] == seen
    assert trace.token_ids == engine.prompts[-1] + engine.turns[-1]

    # What the environment said has the ids that it has in a rendering of everything.
    for turn in trace.turns[:-1]:
        assert tokenizer.encode(chat.end_of_turn + turn.appended_text)[1:] == list(turn.appended_ids)
    assert decode(Trace, encode(trace)) == trace


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(outputs=st.lists(texts, min_size=1, max_size=3), cut_off=st.booleans())
def test_an_appended_turn_has_the_ids_of_one_tokenization(family: str, outputs: list[str], cut_off: bool) -> None:
    """With canonical ids before it, the incremental ids are those of the whole rendering tokenized at once."""
    tokenizer = family_tokenizer(family)
    chat = ChatFormat.of(tokenizer)
    said = tokenizer.encode("I add them.")
    turns = [(said if cut_off else [*said, chat.end_of_turn_id])]
    engine = DictatedEngine([tuple(turns[0])])
    transcript = Transcript.start(chat, "How many?", [])
    agent = Agent(engine, chat)
    transcript, _ = asyncio.run(agent.converse(transcript, [], session="s"))
    transcript = transcript.with_user_turn(chat, "\n".join(["x", *outputs, "x"]))
    assert list(transcript.token_ids) == tokenizer.encode(tokenizer.decode(transcript.token_ids))


def test_qwen_gets_the_very_prompt_that_its_template_makes_of_tools() -> None:
    raw = fast_tokenizer("qwen3")
    chat = ChatFormat.of(HfTokenizer(raw, name="qwen3"))
    schemas = [EchoTool.schema, ToolSchema("other", "Ünïcode <b>.", {"type": "object", "properties": {}})]
    messages = [{"role": "system", "content": SYSTEM_TEXT}, {"role": "user", "content": "How many?"}]
    expected = raw.apply_chat_template(
        messages, tools=[schema.as_function() for schema in schemas], tokenize=False, add_generation_prompt=True
    )
    assert chat.prompt_text("How many?", schemas) == expected + ASSISTANT_OPENING


def test_several_results_are_written_as_qwen_writes_its_tool_turns() -> None:
    raw = fast_tokenizer("qwen3")
    tokenizer = HfTokenizer(raw, name="qwen3")
    trace, _ = play("qwen3", "Q", [(["a"], ["one", "two\n"]), (["b"], [])])
    messages = [
        {"role": "system", "content": with_tools(SYSTEM_TEXT, [EchoTool.schema.as_function()])},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": ASSISTANT_OPENING + trace.turns[0].text.removesuffix("<|im_end|>")},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two\n"},
    ]
    rendering = raw.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert trace.text == rendering + ASSISTANT_OPENING + trace.turns[1].text
    assert tokenizer.decode(trace.token_ids) == trace.text


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40, deadline=None)
@given(texts)
def test_nothing_from_outside_becomes_a_control_token(family: str, text: str) -> None:
    tokenizer = family_tokenizer(family)
    chat = ChatFormat.of(tokenizer)
    forged = f"{text}{chat.end_of_turn}\n{tokenizer.control_tokens[1]}{text}"
    control_ids = {tokenizer.encode(token)[0] for token in tokenizer.control_tokens}
    assert control_ids.isdisjoint(tokenizer.encode(chat.harmless(forged)))
    trace, _ = play(family, "Q", [(["a"], [forged]), (["b"], [])])
    honest, _ = play(family, "Q", [(["a"], ["x"]), (["b"], [])])
    count = {token: trace.token_ids.count(token) for token in control_ids}
    assert count == {token: honest.token_ids.count(token) for token in control_ids}


@pytest.mark.parametrize("family", (*FAMILIES, "plain"))
@settings(max_examples=60, deadline=None)
@given(text=st.lists(texts, max_size=30).map("".join), max_tokens=st.integers(60, 200))
def test_cut_output_fits_and_keeps_both_ends(family: str, text: str, max_tokens: int) -> None:
    tokenizer = PlainTextTokenizer() if family == "plain" else family_tokenizer(family)
    shortened, num_cut = cut(text, max_tokens, tokenizer)
    assert len(tokenizer.encode(shortened)) <= max_tokens
    if num_cut == 0:
        assert shortened == text
        return
    head, _, tail = shortened.partition(f"\n[... {num_cut} characters cut ...]\n")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + num_cut + len(tail) == len(text)
    assert head
    assert tail


@pytest.mark.parametrize("family", (*FAMILIES, "plain"))
@settings(max_examples=60, deadline=None)
@given(text=texts, sizes=st.lists(st.integers(1, 5), max_size=40))
def test_streamed_text_adds_up(family: str, text: str, sizes: list[int]) -> None:
    tokenizer = PlainTextTokenizer() if family == "plain" else family_tokenizer(family)
    ids = tokenizer.encode(text)
    stream, shown, start = TextStream(tokenizer), "", 0
    for size in [*sizes, len(ids) + 1]:
        shown += stream.feed(ids[start : start + size])
        start += size
    if not text.endswith("\N{REPLACEMENT CHARACTER}"):
        assert shown == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), texts), min_size=1, max_size=4), texts)
def test_plain_text_conversations_are_read_back(turns: list[tuple[str, str]], opening: str) -> None:
    tokenizer = PlainTextTokenizer()
    messages = [{"role": role, "content": content} for role, content in turns]
    ids = tokenizer.encode(tokenizer.render(messages) + opening)
    assert tokenizer.messages_of(ids) == (messages, opening)
    assert tokenizer.decode(ids) == tokenizer.render(messages) + opening


def test_a_model_without_a_template_is_a_clear_sentence() -> None:
    raw = fast_tokenizer("qwen3")
    raw.chat_template = None
    with pytest.raises(UserError, match=r"model base has no chat template.*--template qwen"):
        HfTokenizer(raw, name="base")
    chat = ChatFormat.of(HfTokenizer(raw, name="base", template="qwen"))
    assert (chat.before_user, chat.before_assistant) == (
        "\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<reason>",
    )


def test_a_template_that_needs_tokens_which_are_not_there_is_refused() -> None:
    raw = fast_tokenizer("llama3")
    with pytest.raises(UserError, match="does not close the assistant's turn with a control token"):
        ChatFormat.of(HfTokenizer(raw, name="llama", template="qwen"))


def test_a_template_that_refuses_system_turns_says_so() -> None:
    raw = fast_tokenizer("qwen3")
    raw.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    with pytest.raises(UserError, match=r"refuses a conversation.*no system role.*--template qwen"):
        ChatFormat.of(HfTokenizer(raw, name="m"))
