"""One server on a tiny model for all clients. `make test-clients` runs them in an environment that has the clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from model_server import serving, tiny_model


@dataclass(frozen=True)
class Served:
    root: str
    folder: Path
    name: str = "tiny"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tiny_model(tmp_path_factory.mktemp("model") / "tiny")
    with serving(str(folder), "--name", "tiny", "--allow-updates") as server:
        yield Served(server.root, folder)
