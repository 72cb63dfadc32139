"""An MCP server of the older handshake, without the SDK: it starts at once, and writes what other SDKs write.

`answer` is also used over HTTP. As a program it speaks over stdio and answers one call after the other. It prints a
line that is no message, and writes the id of an answer behind the result, as the SDK for TypeScript does. With the
argument `deaf` it does not end with its stdin.
"""

import json
import os
import signal
import sys
from typing import Any

notes: list[str] = []

TOOLS = {
    "note": {"text": {"type": "string"}},
    "pid": {},
    "die": {},
    "hang": {},
    "freeze": {},
    "write": {"num_chars": {"type": "integer"}},
    "odd": {},
}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request; None if there is none."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": "plain", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": _schema(rows)} for name, rows in TOOLS.items()]}
    if method == "tools/call":
        text = _call(params["name"], params["arguments"])
        return None if text is None else {"content": [{"type": "text", "text": text}]}
    return None


def _schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _call(name: str, arguments: dict[str, Any]) -> str | None:
    if name == "note":
        notes.append(arguments["text"])
        return ", ".join(notes)
    if name == "pid":
        return str(os.getpid())
    if name == "odd":
        return "half a pair: \ud83d"
    if name == "write":
        return "first " + "x" * arguments["num_chars"]
    if name == "die":
        print("the disk is on fire", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "freeze":
        signal.pause()
    return None


def main() -> None:
    print("listening", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] not in ("initialize", "tools/list", "tools/call"):
            body: dict[str, Any] = {"error": {"code": -32601, "message": "unknown method"}}
        else:
            result = answer(message)
            if result is None:
                continue
            body = {"result": result}
        print(json.dumps({**body, "jsonrpc": "2.0", "id": message["id"]}), flush=True)
    if "deaf" in sys.argv:
        signal.pause()


if __name__ == "__main__":
    main()
