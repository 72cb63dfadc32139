"""Append-only files: torn tails, one writer, resuming readers, corrupt lines."""

import errno
import os
import threading
from pathlib import Path

import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Problem
from rstar2.records.codec import RecordError
from rstar2.records.jsonl import LineWriter, is_being_written, read_lines
from rstar2.records.record_file import RecordWriter, iterate, read_from

pytestmark = pytest.mark.unit


def lines_of(path: Path) -> list[bytes]:
    return [line.data for line in read_lines(path)]


def test_a_torn_tail_is_ignored_by_readers_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    torn = b"x" * 200_000  # longer than one backward scan
    path.write_bytes(b"one\ntwo\n" + torn)
    assert lines_of(path) == [b"one", b"two"]
    assert path.stat().st_size == 8 + len(torn), "reading changes nothing"
    with LineWriter(path) as writer:
        assert writer.num_torn_bytes == len(torn)
        writer.append(b"three")
        assert writer.end == path.stat().st_size
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_file_that_is_only_a_torn_tail_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"y" * 70_000)
    with LineWriter(path) as writer:
        assert writer.num_torn_bytes == 70_000
    assert path.read_bytes() == b""


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:
        assert is_being_written(path)
        with pytest.raises(UserError, match=r"a\.jsonl is being written by another process"):
            LineWriter(path)
        writer.append(b"still mine")
    assert not is_being_written(path)
    with LineWriter(path) as writer:
        writer.append(b"next")
    assert lines_of(path) == [b"still mine", b"next"]


def test_asking_whether_it_is_written_does_not_refuse_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            is_being_written(path)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(100):
            LineWriter(path).close()
    finally:
        done.set()
        thread.join()


def test_a_reader_follows_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    first, second, third = (Problem(str(index), "q" * index, "a") for index in range(3))
    with RecordWriter[Problem](path) as writer:
        assert read_from(Problem, path, 0) == ([], 0)
        writer.append(first)
        records, offset = read_from(Problem, path, 0)
        assert records == [first]
        writer.append(second)
        writer.append(third)
        records, offset = read_from(Problem, path, offset)
        assert records == [second, third]
        assert read_from(Problem, path, offset) == ([], offset)


def test_an_offset_beyond_the_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(UserError, match="shorter than the offset 4"):
        read_from(Problem, path, 4)


@pytest.mark.parametrize("bad", [b"not json", b"", b"\x00\x00\x00", b'{"id": "1"}'])
def test_a_corrupt_line_in_the_middle_is_an_error_that_says_where(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "p.jsonl"
    with RecordWriter[Problem](path) as writer:
        for index in range(3):
            writer.append(Problem(str(index), "é", "a"))
    start, middle, end = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([start, middle, bad, end]) + b"\n")
    offset = len(start) + len(middle) + 2
    with pytest.raises(RecordError, match=rf"p\.jsonl, line 3, byte {offset}: "):
        list(iterate(Problem, path))
    with pytest.raises(RecordError, match=rf"p\.jsonl, line 3, byte {offset}: "):
        read_from(Problem, path, len(start) + 1)


def test_a_write_that_fails_half_way_is_undone_and_the_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    write, num_calls = os.write, 0

    def full_after_three_bytes(descriptor: int, data: bytes) -> int:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:3])

    with LineWriter(path) as writer:
        writer.append(b"good")
        monkeypatch.setattr(os, "write", full_after_three_bytes)
        with pytest.raises(InfrastructureError, match=r"cannot append to .*a\.jsonl: No space left on device"):
            writer.append(b"lost entirely")
        assert path.read_bytes() == b"good\n"
        writer.append(b"in pieces of three")
    assert lines_of(path) == [b"good", b"in pieces of three"]


@pytest.mark.parametrize("stop_after_bytes", [0, 4])
def test_an_interrupt_inside_a_write_leaves_no_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after_bytes: int
) -> None:
    path = tmp_path / "a.jsonl"
    write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:stop_after_bytes])
        raise KeyboardInterrupt

    with LineWriter(path) as writer:
        writer.append(b"good")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.append(b"interrupted")
        writer.append(b"next")
    assert path.read_bytes() == b"good\nnext\n"


def test_a_repair_that_fails_is_made_up_for_by_the_next_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    write, num_calls = os.write, 0

    def torn(descriptor: int, data: bytes) -> int:
        nonlocal num_calls
        num_calls += 1
        return write(descriptor, data[:2]) if num_calls == 1 else broken()

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with LineWriter(path) as writer:
        writer.append(b"good")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", torn)
            patch.setattr(os, "ftruncate", broken)
            with pytest.raises(InfrastructureError):
                writer.append(b"lost")
        assert path.read_bytes() == b"good\nlo"
        assert lines_of(path) == [b"good"]
        writer.append(b"next")
    assert path.read_bytes() == b"good\nnext\n"


def test_lines_are_synced_no_later_than_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    synced_at_s: list[float] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced_at_s.append(now_s))
    with LineWriter(tmp_path / "a.jsonl", sync_every_s=10.0, clock=lambda: now_s) as writer:
        for moment_s in (1.0, 9.0, 10.0, 11.0, 19.0, 25.0):
            now_s = moment_s
            writer.append(b"line")
    assert synced_at_s == [10.0, 25.0]


def test_threads_share_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with LineWriter(path) as writer:

        def work(name: int) -> None:
            for index in range(200):
                writer.append(b"%d %d %s" % (name, index, b"z" * (index % 50)))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen = [tuple(map(int, line.split()[:2])) for line in lines_of(path)]
    assert sorted(seen) == [(name, index) for name in range(4) for index in range(200)]


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"cannot open .* for appending: No such file or directory"):
        LineWriter(tmp_path / "missing" / "a.jsonl")
