"""The hub's client against a hub on loopback: one that serves, one that refuses, one that says nothing."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub.constants
import pytest

from rstar2.models import CATALOG, hub
from rstar2.models.hub import HubUnavailableError, fetch_from_hub, needed
from rstar2.models.progress import SilentProgress

pytestmark = pytest.mark.unit

ENTRY = replace(CATALOG["smollm2-135m"], repo="owner/tiny", wheel=None)
FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 1000,
    "tokenizer.json": b'{"version": "1.0"}',
    "README.md": b"# not needed",
    "onnx/model.onnx": b"not needed",
    "runs/old/model.safetensors": b"not needed",
}


class LoopbackHub(BaseHTTPRequestHandler):
    """As much of the hub's interface as `model_info` and `snapshot_download` use."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        api = "/api/models/owner/tiny"
        if path == f"{api}/revision/{ENTRY.revision}":
            siblings = [{"rfilename": name, "size": len(body)} for name, body in FILES.items()]
            body = json.dumps({"id": "owner/tiny", "sha": ENTRY.revision, "siblings": siblings}).encode()
        elif path == f"{api}/tree/{ENTRY.revision}":
            tree = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in FILES.items()
            ]
            body = json.dumps(tree).encode()
        elif path.startswith(resolve := f"/owner/tiny/resolve/{ENTRY.revision}/"):
            body = FILES[path.removeprefix(resolve)]
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json" if path.startswith("/api") else "application/octet-stream")
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", ENTRY.revision)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def use_hub(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    endpoint = f"http://127.0.0.1:{port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )


@pytest.fixture
def loopback_hub(online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001
    server = ThreadingHTTPServer(("127.0.0.1", 0), LoopbackHub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    use_hub(monkeypatch, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.usefixtures("loopback_hub")
def test_only_the_needed_files_arrive_and_nothing_else(tmp_path: Path) -> None:
    fetch_from_hub(ENTRY, tmp_path, SilentProgress())
    arrived = {
        path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert arrived == {name: body for name, body in FILES.items() if needed(name)}
    assert sorted(arrived) == ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.usefixtures("loopback_hub")
@pytest.mark.parametrize("wrong", [{"repo": "owner/none"}, {"revision": "f" * 40}])
def test_what_the_hub_does_not_have_is_one_line(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(HubUnavailableError, match="404") as raised:
        fetch_from_hub(replace(ENTRY, **wrong), tmp_path, SilentProgress())
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("online")
def test_a_refused_connection_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed_port = listener.getsockname()[1]
    use_hub(monkeypatch, closed_port)
    with pytest.raises(HubUnavailableError, match="refused"):
        fetch_from_hub(ENTRY, tmp_path, SilentProgress())


@pytest.mark.usefixtures("online")
def test_a_silent_hub_is_left_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "HUB_ANSWER_DEADLINE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(monkeypatch, silent.getsockname()[1])
        with pytest.raises(HubUnavailableError, match=r"no answer within 0\.5 s|timed out"):
            fetch_from_hub(ENTRY, tmp_path, SilentProgress())


def test_offline_mode_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnavailableError, match="HF_HUB_OFFLINE is set"):
        fetch_from_hub(ENTRY, tmp_path, SilentProgress())
