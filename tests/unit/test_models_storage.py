"""A folder appears finished or not at all; disk trouble is a sentence."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.errors import InfrastructureError, UserError
from rstar2.models.storage import exclusive, put_in_place, require_free, staged, storage_errors

pytestmark = pytest.mark.unit


def test_a_failure_leaves_no_scratch(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "model") as scratch:
        (scratch / "half").write_text("made")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_neighbours_are_not(tmp_path: Path) -> None:
    (tmp_path / ".model.dead.partial" / "deep").mkdir(parents=True)
    (tmp_path / ".model-two.dead.partial").mkdir()
    with staged(tmp_path / "model"):
        assert not (tmp_path / ".model.dead.partial").exists()
    assert (tmp_path / ".model-two.dead.partial").is_dir()


def test_put_in_place_replaces_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    with staged(folder) as scratch:
        (scratch / "model").mkdir()
        (scratch / "model" / "new").touch()
        put_in_place(scratch / "model", folder, scratch)
    assert [path.name for path in folder.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_rename_brings_the_old_folder_back(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "old").touch()
    with staged(folder) as scratch, pytest.raises(FileNotFoundError):
        put_in_place(scratch / "never made", folder, scratch)
    assert [path.name for path in folder.iterdir()] == ["old"]


def test_a_second_process_is_told_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with exclusive(folder):
        with pytest.raises(InfrastructureError, match="another process is writing"), exclusive(folder):
            pass
        with exclusive(tmp_path / "other model"):
            pass
    with exclusive(folder):
        pass
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_said_beforehand(tmp_path: Path) -> None:
    require_free(tmp_path, 1)
    with pytest.raises(InfrastructureError, match=r"this needs 1000000000\.0 GB.* GB free.*--dir"):
        require_free(tmp_path, 10**18)


def test_a_write_past_the_limit_is_a_sentence(tmp_path: Path) -> None:
    """A file size limit is the one full disk that needs no mount; it must not outlive its process."""
    program = (
        "import resource, sys; from pathlib import Path; from rstar2.models.storage import storage_errors\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))\n"
        "folder = Path(sys.argv[1])\n"
        "with storage_errors(folder): (folder / 'weights').write_bytes(bytes(10_000))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 1
    assert f"InfrastructureError: the disk of {tmp_path} is full" in finished.stderr


def test_disk_errors_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="is full"), storage_errors(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UserError, match=r"cannot write to /x .*RSTAR2_HOME"), storage_errors(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", "/x")
    with pytest.raises(ConnectionResetError), storage_errors(tmp_path):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
