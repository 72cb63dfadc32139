"""A terminal gets no escape codes from programs; a pipe gets what they printed."""

import io
import json
import os
import pty
import subprocess
import sys

import pytest
from rich.progress import Progress

from rstar2.agent.events import CallStarted
from rstar2.cli.agent_display import AgentDisplay
from rstar2.cli.console import Console
from rstar2.cli.output import note, print_json, printable, say
from rstar2.cli.tables import print_table
from rstar2.records import ToolCall

pytestmark = pytest.mark.integration
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31mred\r\x08\x7f"
PROGRAM = f"import sys\nprint({EVIL!r})\nprint({EVIL!r}, file=sys.stderr)\nlast = {EVIL!r}\nlast"
COMMAND = [sys.executable, "-m", "rstar2", "sandbox", "run", "--unsafe", "-"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_shown_and_what_is_kept() -> None:
    assert printable("a\tb\nπ \x1b[1m", Terminal()) == "a\tb\nπ \\x1b[1m"
    assert printable(EVIL, io.StringIO()) == EVIL
    assert printable(EVIL, Terminal()).isprintable()


def test_a_terminal_gets_no_escape_codes() -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(PROGRAM.encode())
        process.stdin.close()
        seen = b""
        try:
            while piece := os.read(ours, 1 << 16):
                seen += piece
        except OSError:  # the other end is closed
            pass
        process.wait(60)
    os.close(ours)
    assert seen.count(b"\\x1b]52") == 3
    assert not {b"\x1b", b"\x07", b"\x08", b"\x7f", "\x9b".encode()} & {bytes([one]) for one in seen}
    assert "\x9b".encode() not in seen


def test_a_pipe_gets_what_was_printed() -> None:
    done = subprocess.run(COMMAND, input=PROGRAM.encode(), capture_output=True, check=True, timeout=240)
    assert done.stdout.startswith(EVIL.encode())


def test_nothing_that_a_model_or_a_server_writes_reaches_a_terminal_as_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    note(f"answer: {EVIL}")
    say(f"row {EVIL}")
    print_json({"value": EVIL})
    console = Console(file=screen, force_terminal=True, color_system=None, width=200)
    display = AgentDisplay(console)
    display(CallStarted(ToolCall("", "run_python", {"code": f"x = '{EVIL}'"})))
    display(CallStarted(ToolCall("", EVIL, {"query": EVIL})))
    print_table(console, ["name"], [[EVIL]], title=EVIL)
    with Progress(console=console) as bars:
        bars.add_task(EVIL, total=1)
    shown = screen.getvalue()
    assert shown.count("\\x1b]52") >= 7 and "\\u001b]52" in shown
    for code in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\x7f"):
        assert code not in shown


def test_json_is_still_json(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    print_json({"value": EVIL, "pi": "π"})
    assert json.loads(written.getvalue()) == {"value": EVIL, "pi": "π"} and "π" in written.getvalue()
