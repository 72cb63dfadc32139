"""A program does in the sandbox what it does in a plain interpreter: the same stdout, exit code, signal and stderr.

Every snippet is run by this very interpreter, in an empty directory and with the sandbox's environment, and then on
both paths of the sandbox. The only difference allowed is the file name in a traceback.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from library_snippets import SNIPPETS, Snippet

from rstar2.sandbox import Limits, LocalConfig, LocalExecutor, Sandbox
from rstar2.sandbox.slots.interpreter import CELL_NAME
from rstar2.sandbox.slots.slot_factory import SlotConfig
from rstar2.sandbox.slots.templates import _ENVIRONMENT

pytestmark = pytest.mark.integration

LIMITS = Limits(wall_s=60.0, cpu_s=60.0, output_bytes=4 << 20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What can be seen of a program from outside. `ending` is the exit code, or minus the signal."""

    ending: int | None
    stdout: str
    stderr: str


SLOW_FONTS = b"Matplotlib is building the font cache; this may take a moment.\n"
"""Said by an interpreter without a font cache where that takes five seconds; the sandbox has one."""


def in_plain_interpreter(snippet: Snippet, folder: Path) -> Outcome:
    folder.mkdir()
    script, scratch = folder / "program.py", folder / "scratch"
    scratch.mkdir()
    script.write_bytes(snippet.code.encode("utf-8", "surrogatepass"))
    arguments = ["-c", snippet.code] if snippet.is_command else [str(script)]
    environment = _ENVIRONMENT | {"HOME": str(scratch), "TMPDIR": str(scratch), "MPLCONFIGDIR": str(scratch / "mpl")}
    done = subprocess.run(
        [sys.executable, "-I", *arguments],
        input=snippet.stdin.encode(),
        capture_output=True,
        cwd=scratch,
        env=environment,
        timeout=240,
        check=False,
    )
    stderr = done.stderr.replace(SLOW_FONTS, b"")
    return Outcome(done.returncode, *(as_text(data, str(script)) for data in (done.stdout, stderr)))


def as_text(data: bytes, script: str = CELL_NAME) -> str:
    """Without what may differ: the program's file name, and how many frames of a recursion fitted under ours."""
    text = data.decode("utf-8", "replace").replace(script, CELL_NAME).replace('"<string>"', f'"{CELL_NAME}"')
    return re.sub(r"repeated \d+ more times", "repeated many more times", text)


def in_sandbox(sandbox: Sandbox, snippet: Snippet) -> Outcome:
    execution = sandbox.run(snippet.code, snippet.stdin, LIMITS)
    ending = execution.exit_code if execution.signal is None else -execution.signal
    return Outcome(ending, *(as_text(text.encode()) for text in (execution.stdout, execution.stderr)))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Snippet], Outcome]]:
    """Outcomes of the plain runs, made ahead on one thread a core while the sandbox is at work."""
    folder = tmp_path_factory.mktemp("plain")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures: dict[str, Future[Outcome]] = {
            snippet.name: pool.submit(in_plain_interpreter, snippet, folder / str(number))
            for number, snippet in enumerate(SNIPPETS)
        }
        yield lambda snippet: futures[snippet.name].result()


@pytest.fixture(scope="module", params=[True, False], ids=["fast", "python"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    config = LocalConfig(slots=SlotConfig(fast=request.param))
    with Sandbox(executor=lambda: LocalExecutor(config)) as sandbox:
        yield sandbox


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.name)
def test_as_in_a_plain_interpreter(sandbox: Sandbox, plain: Callable[[Snippet], Outcome], snippet: Snippet) -> None:
    expected = plain(snippet)
    seen = in_sandbox(sandbox, snippet)
    assert (seen.ending, seen.stdout, seen.stderr) == (expected.ending, expected.stdout, expected.stderr)
