"""The small run in the package, as an archive, since a run directory is repetitive and compresses well."""

import zipfile
from importlib import resources
from pathlib import Path

ARCHIVE = "demo_run.zip"


def unpack_demo(folder: Path) -> Path:
    """Unpack the run into `folder`; returns the run directory."""
    target = folder / "demo"
    with (resources.files("rstar2.web") / ARCHIVE).open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(target)
    return target
