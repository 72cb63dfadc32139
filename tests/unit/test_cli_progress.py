"""Waits on stderr: plain lines without a terminal, from a thread of their own."""

import sys
import threading

import pytest

from rstar2.cli.progress import counted, every_so_often, minutes, waiting

pytestmark = pytest.mark.unit

DEADLINE_S = 240.0


def test_ticks_come_while_the_block_waits_and_not_after_it() -> None:
    third = threading.Event()
    num_ticks = 0

    def tick() -> None:
        nonlocal num_ticks
        num_ticks += 1
        if num_ticks == 3:
            third.set()

    with every_so_often(tick, period_s=0.001):
        assert third.wait(DEADLINE_S)
    assert not any(thread.name == "progress" for thread in threading.enumerate())


def test_an_error_in_the_block_ends_the_ticks() -> None:
    with pytest.raises(KeyError), every_so_often(lambda: None):
        raise KeyError
    assert not any(thread.name == "progress" for thread in threading.enumerate())


def test_without_a_terminal_lines_go_to_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    with counted("simulating", 20):
        pass
    with waiting("reading the data"):
        pass
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "simulating: 0 of 20 done, 0:00\nreading the data, 0:00\n"


def test_what_is_done_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with counted("simulating", 20, period_s=0.001) as advance:
        advance()
        advance()
        seen = ""
        while "2 of 20" not in seen:
            seen += capsys.readouterr().err
    assert "simulating: 2 of 20 done" in seen


def test_minutes() -> None:
    assert [minutes(seconds) for seconds in (0.9, 61, 3600 + 125)] == ["0:00", "1:01", "1:02:05"]
