"""The wheel as a user has it: installed into an environment of its own that sees third-party packages, but not the
repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PACKAGED = ("src", "pyproject.toml", "setup.py", "README.md", "LICENSE")
SANDBOX = """
from rstar2.sandbox import Sandbox
from rstar2.sandbox.slots import _fork

with Sandbox() as sandbox:
    print(sandbox.run("from sympy import factorint; print(factorint(2**64 - 1)[641])").stdout.strip(), _fork.__file__)
"""
GRPO_ROC = """
import numpy as np
from rstar2.algo import RocSettings, choose_rollouts

rewards, penalties = [1, 1, 1, 0, 0, 0, 0, 0], [0, 0.5, 1.5, 0, 0, 0, 0, 0]
choice = choose_rollouts(rewards, penalties, RocSettings(group_size=4), np.random.default_rng(0))
print(int(choice.kept.sum()), np.nansum(choice.advantages).round(9) + 0.0)
"""
CUT = (
    'stages=[{name="only", data=["train"], max_response_tokens=128, max_turns=1, steps=1}]',
    *("model.tiny.hidden_size=32", "data.format.num_problems=32", "data.train.num_problems=2"),
    *(
        "data.held_out.num_problems=2",
        "train.prompts_per_step=2",
        "algo.drop_equal_groups=false",
        "eval.num_samples=1",
        "eval.max_response_tokens=128",
    ),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist, built from a copy without anything that was compiled here."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    compiled = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=compiled)
        else:
            shutil.copy(ROOT / name, source / name)
    run([sys.executable, str(ROOT / "scripts" / "build_wheel.py"), str(folder)], source)
    return folder


@pytest.fixture(scope="module")
def scripts(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that holds the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    [site_packages] = folder.glob("lib/python*/site-packages")
    # A path file inside a folder that a path file names is not read, so the editable installation stays unknown.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site_packages / "third_party.pth").write_text("\n".join(others))
    [wheel] = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    run([*pip, "--quiet", "--no-index", "--no-deps", "--ignore-installed", str(wheel)], folder)
    return folder / "bin"


def run(command: list[str], folder: Path) -> str:
    """What it prints, run in `folder` without anything of the repository on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sdist_and_the_wheel_hold_what_they_should(built: Path) -> None:
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    assert "-manylinux_2_" in wheel.name
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"src/rstar2/sandbox/slots/_fork.c", "src/rstar2/recipes/quickstart.toml", "LICENSE"}


def test_the_sandbox_runs_with_its_c_part(scripts: Path, tmp_path: Path) -> None:
    count, fast_path = run([str(scripts / "python"), "-c", SANDBOX], tmp_path).split()
    assert count == "1"
    assert Path(fast_path).is_relative_to(scripts.parent)


def test_rollouts_are_chosen(scripts: Path, tmp_path: Path) -> None:
    assert run([str(scripts / "python"), "-c", GRPO_ROC], tmp_path).split() == ["4", "0.0"]


def test_a_shipped_recipe_is_found_and_trained(scripts: Path, tmp_path: Path) -> None:
    assert "quickstart" in run([str(scripts / "rstar2"), "recipe", "list"], tmp_path)
    overrides = [word for override in CUT for word in ("--set", override)]
    run([str(scripts / "rstar2"), "train", "quickstart", "--run", "out", "--threads", "1", *overrides], tmp_path)
    assert (tmp_path / "out" / "final" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "report.html").is_file()
