"""An engine's process whose device has a speed of its own: every prefill and every decode step takes as long as an
accelerator's would, whatever this machine's cores have to do besides.

All else is real: the weights, the cache and its blocks, the engine's scheduler, the process and its socket.
"""

import argparse
import asyncio
import json
import socket
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rstar2.engine.embedded import EmbeddedEngine
from rstar2.engine.embedded.scheduler import PrefillChunk
from rstar2.engine.process.host import load_embedded, serve

STEP_S = 0.012
SEQUENCE_S = 0.0008
PREFILL_TOKEN_S = 0.0012
"""The proportions of `rstar2 simulate`'s default: a context that was lost costs many steps."""


class PacedRunner:
    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        end_s = time.monotonic() + PREFILL_TOKEN_S * sum(chunk.end - chunk.start for chunk in chunks)
        self._runner.prefill(chunks)
        _sleep_until(end_s)

    def start_decode(self, sequences: Sequence[Any]) -> Any:
        end_s = time.monotonic() + STEP_S + SEQUENCE_S * len(sequences)
        handle = self._runner.start_decode(sequences)
        _sleep_until(end_s)
        return handle


def _sleep_until(end_s: float) -> None:
    time.sleep(max(0.0, end_s - time.monotonic()))


def load_paced(folder: Path, options: dict[str, Any]) -> EmbeddedEngine:
    engine = load_embedded(folder, options, "cpu", 1)
    with engine.paused():
        engine._runner = PacedRunner(engine._runner)  # type: ignore[assignment]
    return engine


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    given = parser.parse_args()
    asyncio.run(serve(socket.socket(fileno=given.socket), partial(load_paced, given.folder, given.options)))
