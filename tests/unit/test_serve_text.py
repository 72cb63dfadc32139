"""From ids to the parts of an answer: stop strings, reasoning, content, calls, however the text is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.engine.plain_text import END_ID, PlainTextTokenizer
from rstar2.serve.chat_text import ChatText, message_of
from rstar2.serve.text import TextReader

pytestmark = pytest.mark.unit

TOKENIZER = PlainTextTokenizer()
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def read(text: str, stops: tuple[str, ...], size: int, *, keeps_stop: bool = False) -> tuple[str, int, bool]:
    reader = TextReader(TOKENIZER, frozenset({END_ID}), stops, keeps_stop=keeps_stop)
    ids = [*TOKENIZER.encode(text), END_ID]
    shown, num_used = "", 0
    for start in range(0, len(ids), size):
        piece, used = reader.feed(ids[start : start + size])
        shown, num_used = shown + piece, num_used + used
        if reader.has_stopped:
            break
    return shown + reader.finish(), num_used, reader.has_stopped


@given(
    text=st.text(alphabet="ab c\né", max_size=40),
    stops=st.lists(st.text(alphabet="ab c", min_size=1, max_size=4), max_size=3),
    size=st.integers(1, 7),
)
def test_the_text_ends_before_the_first_stop_string_wherever_the_pieces_end(
    text: str, stops: list[str], size: int
) -> None:
    shown, num_used, has_stopped = read(text, tuple(stops), size)
    starts = [text.index(stop) for stop in stops if stop in text]
    assert has_stopped == bool(starts)
    assert shown == (text[: min(starts)] if starts else text)
    if not starts:
        assert num_used == len(TOKENIZER.encode(text)) + 1


def test_the_ids_end_with_the_one_that_completes_the_stop() -> None:
    shown, num_used, _ = read("one two three four", ("wo th",), 100)
    assert shown == "one t" and num_used == len(TOKENIZER.encode("one two thr"))
    assert read("one two three four", ("wo th",), 100, keeps_stop=True)[0] == "one two th"


def parts(text: str, size: int, **options: Any) -> tuple[dict[str, Any], ChatText]:
    reader = ChatText(**{"is_reasoning": False, "parses_calls": True, **options})
    deltas = [delta for start in range(0, len(text), size) for delta in reader.feed(text[start : start + size])]
    return message_of(deltas + reader.finish()), reader


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_content_and_calls_are_told_apart(size: int) -> None:
    message, reader = parts(f"I think < so.</reason>Adding:\n{CALL}\n{CALL}", size, is_reasoning=True)
    assert message["reasoning_content"] == "I think < so." and message["content"] == "Adding:\n"
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"a": 1}] * 2
    assert reader.has_calls and len({call["id"] for call in message["tool_calls"]}) == 2


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    ("text", "options", "content"),
    [
        ("a <tool_cal", {}, "a <tool_cal"),
        (f"a {CALL}", {"parses_calls": False}, f"a {CALL}"),
        ('a <tool_call>{"name": 5}</tool_call>', {}, 'a <tool_call>{"name": 5}</tool_call>'),
        ('<tool_call>{"name": "add", "argu', {}, '<tool_call>{"name": "add", "argu'),
        ("plain < text </reason> here", {}, "plain < text </reason> here"),
    ],
)
def test_what_is_no_call_stays_in_the_content(text: str, options: dict[str, Any], content: str, size: int) -> None:
    message, reader = parts(text, size, **options)
    assert message == {"role": "assistant", "content": content} and not reader.has_calls


def test_a_call_that_the_server_began_is_complete_and_only_one_is_kept() -> None:
    opening = '<tool_call>\n{"name": "add", "arguments": '
    message, _ = parts('{"a": 2}}\n</tool_call>' + CALL, 4, opening=opening, max_calls=1)
    assert message["content"] is None
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [{"a": 2}]
