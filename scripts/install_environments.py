"""Make virtual environments: rstar2 with verifiers and its example games, openenv, rstar2 with TRL, rstar2 with
inspect_ai. `install_environments.py VENV`

They are apart from the rest because verifiers pins its release of mcp, and apart from each other because openenv needs
an older one. openenv is only a server in the tests, so it does not need rstar2. The environments of TRL import nothing
of what TRL requires (torch and transformers among them), so it is installed without that.
"""

import sys
import tomllib
from pathlib import Path

from install import make_venv, run

VERIFIERS = "verifiers[openenv,ta]==0.4.0"
OPENENV = "openenv==0.10.0"
TRL = "trl==1.16.0"
OPENREWARD = "openreward==0.1.167"
INSPECT = "inspect-ai==0.3.285"
TEST_PLUGINS = ("hypothesis", "pytest>", "pytest-asyncio", "pytest-timeout")


def main() -> None:
    folder = Path(sys.argv[1])
    pip = make_venv(folder)
    development = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    tests = [requirement for requirement in development if requirement.startswith(TEST_PLUGINS)]
    run(f"installing rstar2, its test runner and {VERIFIERS}", [*pip, "--editable", ".", VERIFIERS, *tests])
    run(f"installing {OPENENV}", [*make_venv(folder / "openenv"), OPENENV])
    pip = make_venv(folder / "trl")
    run(f"installing rstar2 and {OPENREWARD}", [*pip, "--editable", ".", OPENREWARD, *tests])
    run(f"installing {TRL} alone", [*pip, "--no-deps", TRL])
    run(f"installing rstar2 and {INSPECT}", [*make_venv(folder / "inspect"), "--editable", ".", INSPECT, *tests])


if __name__ == "__main__":
    main()
