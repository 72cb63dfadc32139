"""A disk that runs full in the middle of a line: an error, a readable file, and a writer that goes on afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.errors import InfrastructureError
from rstar2.records import Problem
from rstar2.records.record_file import RecordWriter, iterate

pytestmark = pytest.mark.integration

AT_THE_FILE_SIZE_LIMIT = """
import resource, sys
from pathlib import Path
from rstar2.errors import InfrastructureError
from rstar2.records import Problem
from rstar2.records.record_file import RecordWriter

path = Path(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
with RecordWriter[Problem](path) as writer:
    writer.append(Problem("first", "q", "a"))
    num_bytes = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes + 1000, hard))
    try:
        writer.append(Problem("too large", "q" * 5000, "a"))
    except InfrastructureError as error:
        print(error)
    assert path.stat().st_size == num_bytes, "the half line is still there"
    writer.append(Problem("small", "q", "a"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    writer.append(Problem("too large", "q" * 5000, "a"))
"""


def test_a_write_cut_short_by_the_kernel_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_FILE_SIZE_LIMIT, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cannot append to" in done.stdout
    assert "File too large" in done.stdout
    assert [problem.id for problem in iterate(Problem, path)] == ["first", "small", "too large"]


def test_a_full_disk_loses_only_what_was_refused(small_disk: Path) -> None:
    path = small_disk / "p.jsonl"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 100_000)
    kept = []
    with RecordWriter[Problem](path) as writer:
        for index in range(200):
            problem = Problem(str(index), "q" * 3001, "a")
            try:
                writer.append(problem)
            except InfrastructureError as error:
                assert "No space left on device" in str(error)
                break
            kept.append(problem)
        assert 20 < len(kept) < 60
        assert list(iterate(Problem, path)) == kept
        filler.unlink()
        kept.append(Problem("after", "q" * 3001, "a"))
        writer.append(kept[-1])
    assert list(iterate(Problem, path)) == kept
