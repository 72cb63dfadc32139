"""Messages of MCP servers: however they are sent they come out as they were, and a long one as a short answer."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar2.environments.mcp import messages
from rstar2.environments.mcp.messages import CUT_KEY, BoundedLines, BoundedMessage

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 200)
    monkeypatch.setattr(messages, "KEPT_BYTES", 150)


def lines_of(text: bytes, sizes: list[int]) -> list[bytes]:
    """The lines of a text that arrives in pieces of these sizes, and then at once."""
    lines, found, start = BoundedLines(), [], 0
    for size in [*sizes, len(text)]:
        found += lines.feed(text[start : start + size])
        start += size
    return found


def answer(text: str, **more: Any) -> bytes:
    return json.dumps(
        {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": text}]}} | more
    ).encode()


@settings(max_examples=200)
@given(
    rows=st.lists(st.binary(max_size=150).map(lambda row: row.replace(b"\n", b"")), max_size=8),
    sizes=st.lists(st.integers(0, 60), max_size=30),
)
def test_short_lines_come_out_as_they_were(rows: list[bytes], sizes: list[int]) -> None:
    assert lines_of(b"".join(row + b"\n" for row in rows), sizes) == rows


@settings(max_examples=200)
@given(sizes=st.lists(st.integers(0, 90), max_size=30), num_chars=st.integers(200, 2000))
def test_a_long_answer_is_shortened_wherever_it_is_split(sizes: list[int], num_chars: int) -> None:
    long = answer("é" + "x" * num_chars)
    before, found, after = lines_of(b"before\n" + long + b"\nafter\n", sizes)
    assert (before, after) == (b"before", b"after")
    message = json.loads(found)
    text = message["result"]["content"][0]["text"]
    assert message["id"] == 7
    assert text.startswith("éxxxx")
    assert message["result"]["_meta"][CUT_KEY] == len(long) - 150


@pytest.mark.parametrize(
    ("text", "request_id", "shown"),
    [
        (b'{"result":{"content":[{"type":"text","text":"' + b"x" * 300 + b'"}]},"jsonrpc":"2.0","id":9}', 9, "xxx"),
        (
            b'{"result":{"content":[{"type":"text","text":"' + b"x" * 300 + b'"}]},"id":"a","jsonrpc":"2.0"} ',
            "a",
            "xxx",
        ),
        (b'{"id":3,"jsonrpc":"2.0","result":{"structuredContent":{"rows":[' + b"1," * 200 + b"1]}}}", 3, '{"id":3'),
        (
            b'data: {"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":"' + b"y" * 300 + b'"}]}}',
            4,
            "yyy",
        ),
    ],
)
def test_the_request_is_found_wherever_its_id_is(text: bytes, request_id: object, shown: str) -> None:
    (found,) = lines_of(text + b"\n", [])
    assert found.startswith(b"data:") == text.startswith(b"data:")
    message = json.loads(found.removeprefix(b"data:"))
    assert message["id"] == request_id
    assert message["result"]["content"][0]["text"].startswith(shown)


def test_a_long_message_that_answers_nothing_is_dropped() -> None:
    notification = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"' + b"x" * 300 + b'"}}\n'
    assert lines_of(notification + b"no JSON " * 100 + b"\n", []) == [b"", b""]


def test_a_body_is_one_message_of_many_lines() -> None:
    body = BoundedMessage()
    for piece in (b'{"jsonrpc": "2.0",\n', b'"result": {"content":\n[{"type": "text", "text": "', b"z" * 400, b'"}]}}'):
        body.add(piece)
    message = json.loads(body.text(request_id=5))
    assert (message["id"], message["result"]["content"][0]["text"][:3]) == (5, "zzz")
