"""Cuts messages of a server before they are parsed, so that one of 100 MB costs no more than its beginning. Pure.

An overlong message is replaced by a short answer to the same request: the beginning of its text and, in `_meta`, the
number of missing bytes.
"""

import json
import re
from typing import Any

from pydantic_core import from_json

MAX_MESSAGE_BYTES = 8 * 2**20
"""The limit of a message; fits screenshots, in base64."""
KEPT_BYTES = 2**18
"""The bytes that are read of a longer message: ten times what a model reads of one result."""
CUT_KEY = "rstar2/num-cut-bytes"

SSE_PREFIX = b"data:"
_TAIL_BYTES = 256
_LAST_ID = re.compile(rb'"id"\s*:\s*(\d+|"[^"\\]*")\s*(?:,\s*"jsonrpc"\s*:\s*"2.0"\s*)?\}\s*$')


class BoundedMessage:
    """One message that arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._head = b""
        self._tail = b""
        self._num_bytes = 0

    def add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if not self._head:
            self._pieces.append(piece)
            if self._num_bytes > MAX_MESSAGE_BYTES:
                self._head = b"".join(self._pieces)[:KEPT_BYTES]
                self._pieces.clear()
        self._tail = (self._tail + piece[-_TAIL_BYTES:])[-_TAIL_BYTES:]

    def text(self, request_id: Any = None) -> bytes:
        """The message, complete or shortened; empty if it is too long and answers no request. `request_id` is the id of
        its request, if known."""
        if self._head:
            return shortened(self._head, self._tail, self._num_bytes, request_id)
        return b"".join(self._pieces)


class BoundedLines:
    """A stream of messages, one per line."""

    def __init__(self) -> None:
        self._message = BoundedMessage()

    def feed(self, piece: bytes, request_id: Any = None) -> list[bytes]:
        """The lines that the piece completes."""
        *ends, rest = piece.split(b"\n")
        lines: list[bytes] = []
        for end in ends:
            self._message.add(end)
            lines.append(self._message.text(request_id))
            self._message = BoundedMessage()
        if rest:
            self._message.add(rest)
        return lines


def shortened(head: bytes, tail: bytes, num_bytes: int, request_id: Any = None) -> bytes:
    """The answer that replaces a message of which only its ends are known; empty if it is not an answer."""
    prefix = SSE_PREFIX if head.startswith(SSE_PREFIX) else b""
    try:
        message = from_json(head.removeprefix(prefix).lstrip(), allow_partial="trailing-strings")
    except ValueError:
        message = None
    message = message if isinstance(message, dict) else {}
    if request_id is None:
        last = _LAST_ID.search(tail)  # some servers write the id behind the result
        request_id = message.get("id", json.loads(last[1]) if last else None)
    if request_id is None or "method" in message:
        return b""
    text = _texts_of(message.get("result")) or head.decode(errors="replace")
    answer = {
        "content": [{"type": "text", "text": text}],
        "isError": False,
        "resultType": "complete",
        "_meta": {CUT_KEY: num_bytes - len(head)},
    }
    return prefix + json.dumps({"jsonrpc": "2.0", "id": request_id, "result": answer}).encode()


def storable(value: Any) -> Any:
    """The JSON value with a question mark for each lone surrogate, which models and servers write and UTF-8 cannot
    encode."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def failure(request_id: Any, code: int, message: str) -> bytes:
    error = {"code": code, "message": message}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


def _texts_of(result: Any) -> str:
    content = result.get("content") if isinstance(result, dict) else None
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    return "\n".join(block["text"] for block in blocks if isinstance(block.get("text"), str))
