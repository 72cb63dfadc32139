"""GPUs, by the driver's own tool; and whether the installed torch was built to use them, by reading its version file.

Importing torch would answer both, in seconds; this answers in milliseconds.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rstar2.doctor.check import Check, State

SECTION = "optional"
QUERY_DEADLINE_S = 2.0
"""The tool answers in a tenth of that, unless the driver has a problem."""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_mib: str
    driver: str


def gpu_check() -> Check:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return decide_gpu((), "nvidia-smi is not there", None)
    command = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return decide_gpu((), f"nvidia-smi gave no answer within {QUERY_DEADLINE_S:g} s", None)
    except OSError as error:
        return decide_gpu((), f"nvidia-smi cannot be run: {error.strerror}", None)
    gpus = parse_gpus(answer.stdout) if answer.returncode == 0 else ()
    last_words = (answer.stdout + answer.stderr).strip().splitlines()[-1:]
    return decide_gpu(gpus, f"nvidia-smi says: {' '.join(last_words)}", _torch_backend())


def parse_gpus(csv_text: str) -> tuple[Gpu, ...]:
    rows = ([cell.strip() for cell in line.split(",")] for line in csv_text.splitlines())
    return tuple(Gpu(*row) for row in rows if len(row) == 3)


def decide_gpu(gpus: tuple[Gpu, ...], why_none: str, torch_backend: str | None) -> Check:
    """`torch_backend` is what torch was built for, as `cuda 13.0`; None if torch is not installed."""
    if not gpus:
        fix = "nothing, for the small recipes; larger models need an NVIDIA GPU and its driver"
        return Check(SECTION, "GPU", State.MISSING, f"none found ({why_none})", fix)
    names = ", ".join(f"{gpu.name} ({gpu.memory_mib} MiB)" for gpu in gpus)
    found = f"{len(gpus)}: {names}, driver {gpus[0].driver}"
    if torch_backend == "cpu":
        fix = "install the CUDA build of torch: docs/dependencies.md says how"
        return Check(SECTION, "GPU", State.LIMITED, f"{found}; but torch is built for the CPU alone", fix)
    return Check(SECTION, "GPU", State.OK, found + (f"; torch is built for {torch_backend}" if torch_backend else ""))


def _torch_backend() -> str | None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        return parse_torch_backend((Path(spec.origin).parent / "version.py").read_text())
    except OSError:
        return None


def parse_torch_backend(version_file: str) -> str:
    for backend in ("cuda", "hip"):
        built_for = re.search(rf"^{backend}\b[^=\n]*= *['\"]([^'\"]+)['\"]", version_file, re.MULTILINE)
        if built_for:
            return f"{backend} {built_for[1]}"
    return "cpu"
