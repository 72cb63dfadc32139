"""A hub on loopback that holds one repository, for tests of what is downloaded."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants
import pytest

COMMIT = "c" * 40
TRAIN = b'{"problem": "What is 1+1?", "answer": "2"}\n{"problem": "What is 2+2?", "answer": "4"}\n'
TEST = b'{"problem": "What is 3+3?", "answer": "6"}\n'


class Hub:
    """What the hub holds, and what it was asked."""

    def __init__(self) -> None:
        self.files = {"README.md": b"# a set", "data/train.jsonl": TRAIN, "data/test.jsonl": TEST}
        self.repo = "owner/set"
        self.commit = COMMIT
        self.listed_sha256: dict[str, str] = {}
        self.ranges: list[str | None] = []

    def listing(self) -> bytes:
        siblings = []
        for name, body in self.files.items():
            sibling: dict[str, object] = {"rfilename": name, "size": len(body)}
            if name in self.listed_sha256:
                sibling["lfs"] = {"sha256": self.listed_sha256[name], "size": len(body), "pointerSize": 1}
            siblings.append(sibling)
        return json.dumps({"id": self.repo, "sha": self.commit, "siblings": siblings}).encode()


@contextmanager
def serving(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The only hub that there is while the block runs; what is downloaded goes to `home`."""
    held = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self._body(path)
            if body is None:
                self.send_error(404)
                return
            start = 0
            if path.startswith("/datasets/"):
                wanted = self.headers.get("Range")
                held.ranges.append(wanted)
                start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            self.end_headers()
            self.wfile.write(body[start:])

        def _body(self, path: str) -> bytes | None:
            revisions = ("main", held.commit)
            if path in [f"/api/datasets/{held.repo}/revision/{revision}" for revision in revisions]:
                return held.listing()
            return held.files.get(path.removeprefix(f"/datasets/{held.repo}/resolve/{held.commit}/"))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("RSTAR2_HOME", str(home))
    try:
        yield held
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
