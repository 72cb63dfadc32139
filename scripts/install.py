"""Make a virtual environment and install rstar2 into it with plain pip. `install.py VENV EXTRA...`

Torch is installed first and pinned, because of what a plain `pip install torch` does: on a machine without a GPU it
brings several gigabytes of CUDA packages. A CPU build carries a local version (2.13.0+cpu) and satisfies `==2.13.0`,
so wherever pip can see one (a wheel folder in its `find-links`, an index that has CPU builds) the pin takes it. On a
machine with a GPU the same pin takes the CUDA build from the package index, which is what a GPU user wants.
"""

import subprocess
import sys
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
WITHOUT_DEPENDENCIES = ("bfcl-eval==2025.7.8", "llama-index-core==0.14.25")
"""What tests of evaluations need of two packages is self-contained: BFCL's simulated services, a copy of nltk's
punkt_tab. The packages' own requirements (numpy 1.26 among them) are not needed and cannot be met beside ours."""
MINIMUM = (3, 11)


def run(what: str, command: list[str]) -> None:
    print(f"== {what}", flush=True)
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(f"failed: {what}. The command was: {' '.join(command)}")


def make_venv(folder: Path) -> list[str]:
    """Makes it if there is none. Returns the command that installs into it."""
    if sys.version_info < MINIMUM:
        sys.exit(f"rstar2 needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer; this is {sys.version.split()[0]} at "
                 f"{sys.executable}. Install one, then run: make PYTHON=/path/to/python3.11 ...")  # fmt: skip
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"== making {folder} with {sys.executable}", flush=True)
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError:
            sys.exit("the venv module cannot install pip; on Debian: apt-get install python3-venv")
    return [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def main() -> None:
    folder, extras = Path(sys.argv[1]), sys.argv[2:]
    pip = make_venv(folder)
    if "train" in extras:
        run(f"installing {TORCH}", [*pip, TORCH])
    wanted = f".[{','.join(extras)}]" if extras else "."
    run(f"installing rstar2 {wanted}", [*pip, "--editable", wanted])
    if "dev" in extras:
        run(f"installing {', '.join(WITHOUT_DEPENDENCIES)}", [*pip, "--no-deps", *WITHOUT_DEPENDENCIES])


if __name__ == "__main__":
    main()
