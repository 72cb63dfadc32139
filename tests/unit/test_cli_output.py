"""What a command says when a file of the user's, or the machine, fails it."""

import errno
from pathlib import Path

import pytest

from rstar2.cli.output import ExitCode, errors_as_sentences

pytestmark = pytest.mark.unit


def said(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end, errors_as_sentences():
        raise error
    assert isinstance(end.value.code, int)
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "sentence"),
    [
        (errno.EACCES, ExitCode.USAGE, "error: a/b: Permission denied\n"),
        (errno.ENAMETOOLONG, ExitCode.USAGE, "error: a/b: File name too long\n"),
        (errno.EISDIR, ExitCode.USAGE, "error: a/b: Is a directory\n"),
        (errno.ENOSPC, ExitCode.INFRASTRUCTURE, "failed: a/b: No space left on device\n"),
        (errno.EIO, ExitCode.INFRASTRUCTURE, "failed: a/b: Input/output error\n"),
    ],
)
@pytest.mark.parametrize("path", ["a/b", b"a/b", Path("a/b")])
def test_what_the_system_refuses_is_a_sentence_with_the_path(
    capsys: pytest.CaptureFixture[str], number: int, code: ExitCode, sentence: str, path: str | bytes | Path
) -> None:
    assert said(OSError(number, "whatever", path), capsys) == (code, sentence)


@pytest.mark.parametrize("error", [OSError("no number"), OSError(errno.EACCES, "no path"), KeyError("a bug")])
def test_what_names_no_file_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)), errors_as_sentences():
        raise error


def test_real_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / ("a" * 300)):
        with pytest.raises(SystemExit) as end, errors_as_sentences():
            path.read_text()
        assert end.value.code == ExitCode.USAGE
        assert str(path) in capsys.readouterr().err
