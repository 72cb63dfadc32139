"""A `rstar2 serve` process for tests, on a tiny model, and what ends it."""

import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2.models.tiny import TinySizes, build_tiny

START_S = 240.0
STOP_S = 240.0
TEXTS = [
    "What is the sum of two numbers? The sum of 12 and 30 is 42. A function returns a value, and a loop repeats it.",
    "def add(a, b): return a + b  # one two three four five six seven eight nine ten",
]
SIZES = TinySizes(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=520, context_tokens=2048)


def tiny_model(folder: Path) -> Path:
    build_tiny(folder, "llama", SIZES, TEXTS, seed=0)
    return folder


class ModelServer:
    """A process that serves; `root` is its address without /v1."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "rstar2", "serve", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []
        self._said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.root = re.search(r"on (http://\S+)/v1", self.wait_for("serving "))[1]  # type: ignore[index]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            self._said.put(line)
        self._said.put("")

    def wait_for(self, text: str) -> str:
        while line := self._said.get(timeout=START_S):
            if text in line:
                return line
        raise AssertionError(f"the server ended without saying {text!r}: {''.join(self.lines)}")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)


@contextmanager
def serving(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[ModelServer]:
    server = ModelServer(*arguments, environment=environment)
    try:
        yield server
        assert server.process.poll() is None, "".join(server.lines)
        assert server.stop() == 0, "".join(server.lines)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait(STOP_S)
