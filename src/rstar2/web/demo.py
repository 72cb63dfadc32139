"""The small run that comes with the package, as one archive: a run directory is mostly repetition and packs well."""

import zipfile
from importlib import resources
from pathlib import Path

ARCHIVE = "demo_run.zip"


def unpack_demo(folder: Path) -> Path:
    """Put it into `folder`; returns the run directory."""
    target = folder / "demo"
    with (resources.files("rstar2.web") / ARCHIVE).open("rb") as file, zipfile.ZipFile(file) as archive:
        archive.extractall(target)
    return target
