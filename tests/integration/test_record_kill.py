"""Kill -9 the trace writer, again and again: nothing that was acknowledged is lost, nothing becomes unreadable."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trace_writer_process import make_trace

from rstar2.records import Trace
from rstar2.records.jsonl import LineWriter
from rstar2.records.record_file import RecordWriter, iterate, read_from

pytestmark = pytest.mark.integration

NUM_FILES, NUM_KILLS_PER_FILE = 5, 10
WRITER = Path(__file__).with_name("trace_writer_process.py")


def write_until_killed(path: Path, first_index: int, delay_s: float, inside_write: bool = False) -> list[int]:
    """The indices that the writer acknowledged before it was killed, `delay_s` after it came up; with `inside_write`
    at the moment after that at which its file is seen to grow."""
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(first_index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        try:
            assert writer.stdout.readline() == b"ready\n", writer.stderr.read()
            time.sleep(delay_s)
            if inside_write:
                wait_until_grown(path)
        finally:
            writer.kill()
        acknowledged = [int(line) for line in writer.stdout.read().splitlines()]
        assert writer.stderr.read() == b""
    return acknowledged


def wait_until_grown(path: Path) -> None:
    num_bytes = path.stat().st_size
    deadline_s = time.monotonic() + 120
    while path.stat().st_size <= num_bytes:
        assert time.monotonic() < deadline_s, "the writer stopped writing"


def test_killing_the_writer_at_random_moments_loses_no_complete_trace(tmp_path: Path) -> None:
    draw = random.Random(20)
    num_torn = num_acknowledged = 0
    for file_index in range(NUM_FILES):
        path = tmp_path / f"traces-{file_index}.jsonl"
        path.touch()
        num_traces = offset = 0
        for _ in range(NUM_KILLS_PER_FILE):
            acknowledged = write_until_killed(
                path, num_traces, delay_s=draw.uniform(0.0, 0.15), inside_write=draw.random() < 0.5
            )
            new, offset = read_from(Trace, path, offset)
            # Every acknowledged trace, and at most the one whose acknowledgement the kill cut off.
            assert acknowledged == list(range(num_traces, num_traces + len(acknowledged)))
            assert len(acknowledged) <= len(new) <= len(acknowledged) + 1
            for trace in new:
                assert trace == make_trace(num_traces)
                num_traces += 1
            num_acknowledged += len(acknowledged)
            num_torn += path.stat().st_size > offset
        with RecordWriter[Trace](path) as writer:
            writer.append(make_trace(num_traces))
        assert [trace.id for trace in iterate(Trace, path)] == [f"trace-{index}" for index in range(num_traces + 1)]
        path.unlink()
    print(f"{NUM_FILES * NUM_KILLS_PER_FILE} kills, {num_torn} inside a write, {num_acknowledged} traces acknowledged")
    assert num_acknowledged > 0, "every writer was killed before it could write"


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write_until_killed(path, 0, delay_s=0.05)
    LineWriter(path).close()
