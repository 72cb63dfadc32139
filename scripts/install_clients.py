"""Make a virtual environment with rstar2 and the clients that a model server must satisfy. `install_clients.py VENV`

They need a separate environment: verifiers wants an older `openai`, and TRL's client refuses to start where vLLM is not
installed. Their versions are pinned, since docs/serve.md names them.
"""

import sys
import tomllib
from pathlib import Path

from install import TORCH, make_venv, run
from install_vllm import BREAKING, TEST_PLUGINS, VLLM

CLIENTS = ["litellm==1.106.2", "lm-eval[api]==0.4.13", "trl==1.16.0", "verifiers==0.4.0", "requests"]


def main() -> None:
    pip = make_venv(Path(sys.argv[1]))
    development = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    run(f"installing {TORCH}", [*pip, TORCH])
    run(f"installing {', '.join([VLLM, *CLIENTS])}: several minutes", [*pip, TORCH, VLLM, *CLIENTS])
    run("removing what breaks vLLM", [*pip[:3], "uninstall", "--quiet", "--yes", *BREAKING])
    tests = [requirement for requirement in development if requirement.startswith(TEST_PLUGINS)]
    run("installing rstar2 and its test runner", [*pip, "--editable", ".[train]", *tests])


if __name__ == "__main__":
    main()
