"""Requests that would hold up, fill or crash a model server, were they not refused."""

import asyncio
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from served_app import Running, running, until

from rstar2.errors import UserError
from rstar2.models import resolve
from rstar2.serve import ServeSettings
from rstar2.serve.chat import ChatReply
from rstar2.serve.completions import CompletionReply

pytestmark = pytest.mark.integration
HUGE = 10**12
SAID = [{"role": "user", "content": "x"}]


async def post(found: Running, path: str, body: Any) -> tuple[int, Any]:
    async with found.http.post(found.root + path, json=body) as response:
        return response.status, await response.json()


async def test_a_huge_n_is_refused_before_anything_is_made_for_it(
    tiny_served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("room was made for a request that is refused")

    monkeypatch.setattr(ChatReply, "__init__", never)
    monkeypatch.setattr(CompletionReply, "__init__", never)
    async with running(tiny_served) as found:
        for path, body in (
            ("/v1/chat/completions", {"messages": SAID, "n": HUGE}),
            ("/v1/completions", {"prompt": ["x", "y"], "n": HUGE}),
            ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"n": HUGE}}),
        ):
            status, document = await post(found, path, body)
            assert (status, document["error"]["param"]) == (400, "n"), document


async def test_arguments_of_calls_may_be_any_text(tiny_served: Path) -> None:
    async with running(tiny_served) as found:
        for arguments in ('{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, '{"a": ' + "1" * 5000 + "}"):
            call = {"function": {"name": "f", "arguments": arguments}}
            messages = [*SAID, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "1"}]
            status, document = await post(found, "/v1/chat/completions", {"messages": messages})
            assert (status, document["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "path", ["", "\0", "a\0b", "~nobody-has-this-name/x", "x" * 5000, "/dev/null", "/proc/self/mem"]
)
async def test_paths_of_weights_that_lead_nowhere(tiny_served: Path, path: str) -> None:
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        for route, body in (
            ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": path or "."}),
            ("/update_weights", {"update_info": {"weights_path": path}}),
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}}),
        ):
            status, document = await post(found, route, body)
            assert status == 400 and len(document["error"]["message"]) < 1000


class Unpickled:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.safetensors", "adapter_model.pt"])
async def test_an_adapter_that_is_a_pickle_is_refused_and_not_unpickled(
    tiny_served: Path, tmp_path: Path, name: str
) -> None:
    adapter, link, mark = tmp_path / "adapter", tmp_path / "link", tmp_path / "mark"
    adapter.mkdir()
    link.symlink_to(adapter)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(tiny_served)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / name).write_bytes(pickle.dumps(Unpickled(mark)))
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        for path in (adapter, link, adapter / ".." / "adapter"):
            status, document = await post(found, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(path)})
            assert status == 400 and "adapter_model.safetensors" in document["error"]["message"]
    with pytest.raises(UserError, match=r"adapter_model\.safetensors"):
        resolve(str(adapter))
    assert not mark.exists()
    pickle.loads((adapter / name).read_bytes())
    assert mark.exists(), "it would have been seen"


async def test_a_pipe_among_the_weights_holds_nobody_up(tiny_served: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    async with running(tiny_served, ServeSettings(allows_updates=True)) as found:
        async with asyncio.timeout(60.0):
            status, _ = await post(found, "/update_weights", {"update_info": {"weights_path": str(tmp_path)}})
        assert status == 400


async def test_silent_connections_are_closed_and_keep_nobody_out(tiny_served: Path) -> None:
    settings = ServeSettings(max_connections=8, header_timeout_s=60.0)
    async with running(tiny_served, settings) as found:
        port = int(found.root.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(32)]
        connections = found.service.connections
        assert connections is not None
        assert (await post(found, "/v1/completions", {"prompt": "x", "max_tokens": 1}))[0] == 200
        await until(lambda: len(connections.open) <= 8)
        for _, writer in silent:
            writer.close()


async def test_half_a_head_is_not_waited_for(tiny_served: Path) -> None:
    async with running(tiny_served, ServeSettings(header_timeout_s=0.2)) as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found.root.rpartition(":")[2]))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        async with asyncio.timeout(60.0):
            assert await reader.read() == b""
        writer.close()


SMUGGLED = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 40",
    "a length and chunks": b"Content-Length: 2\r\nTransfer-Encoding: chunked",
    "chunks that are hidden": b"Transfer-Encoding: chunked, identity",
    "a name with a space": b"Content-Length : 2",
    "a folded line": b"X: 1\r\n Content-Length: 2",
    "a length with a sign": b"Content-Length: +2",
}


@pytest.mark.parametrize("shape", SMUGGLED)
async def test_a_request_is_not_hidden_in_another(tiny_served: Path, shape: str) -> None:
    async with running(tiny_served) as found:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found.root.rpartition(":")[2]))
        inner = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(head + SMUGGLED[shape] + b"\r\n\r\n{}" + inner)
        async with asyncio.timeout(60.0):
            answer = await reader.read()
        assert answer.split()[1] == b"400" and answer.count(b"HTTP/1.") == 1
        writer.close()
