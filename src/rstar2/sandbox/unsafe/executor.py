"""The executor without isolation, for machines that cannot isolate (macOS). It is never chosen silently.

It keeps the interface and the deadlines, but isolates nothing: the code runs as the user, with the user's files and
network, and only honest programs respect its limits.
"""

import os
import sys
from pathlib import Path

from rstar2.sandbox.subprocess_executor import SubprocessExecutor
from rstar2.sandbox.unsafe import child


class PlainLauncher:
    """Satisfies `Launcher`: a subprocess of this interpreter."""

    own_memory_bytes = 1 << 60
    """No bound from outside: the interpreter sets its own memory limit."""

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        scratch = str(folder / "scratch")
        streams = [str(folder / "stdout"), str(folder / "stderr")]
        environment = {"PATH": os.defpath, "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8"}
        return [sys.executable, "-I", "-X", "utf8", child.__file__, *streams], environment

    def signal_of(self, exit_code: int) -> int | None:
        return -exit_code if exit_code < 0 else None

    async def after_end(self, folder: Path) -> None:
        pass


class UnsafeExecutor(SubprocessExecutor):
    """Satisfies `Executor` with plain subprocesses."""

    def __init__(self, num_slots: int | None = None, max_queued: int = 65_536) -> None:
        super().__init__(PlainLauncher(), num_slots, max_queued)
