"""Metrics to services: what they are given, and what is said when one is not installed."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rstar2.errors import UserError
from rstar2.train.reporting.metric_services import open_writers

pytestmark = pytest.mark.unit


class Service(ModuleType):
    """Records what a metric service is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[Any] = []

    def init(self, **settings: Any) -> None:
        self.told.append(settings)

    def log(self, values: dict[str, float]) -> None:
        self.told.append(values)

    def finish(self) -> None:
        self.told.append("finished")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_service_is_told_every_row_with_its_step(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    service = Service(name)
    monkeypatch.setitem(sys.modules, name, service)
    (writer,) = open_writers([name], tmp_path / "guess-1", {"seed": 5})
    writer.metrics(10, "sft", {"loss": 2.0})
    writer.metrics(1, "first", {"accuracy": 0.5})
    writer.metrics(1, "eval:first/held_out", {"accuracy": 0.25})
    writer.close()
    assert service.told == [
        {"project": "rstar2", "name": "guess-1", "config": {"seed": 5}},
        {"sft/step": 10, "sft/loss": 2.0},
        {"train/step": 1, "train/accuracy": 0.5},
        {"eval:first/step": 1, "eval:first/held_out/accuracy": 0.25},
        "finished",
    ]


def test_tensorboard_touches_the_run_folder_only_with_the_first_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            Path(folder).mkdir()

        def add_scalar(self, *row: Any) -> None:
            told.append(row)

        def flush(self) -> None:
            told.append("flushed")

        def close(self) -> None:
            told.append("closed")

    tensorboard = ModuleType("torch.utils.tensorboard")
    tensorboard.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    (idle,), (writer,) = (open_writers(["tensorboard"], tmp_path, {}) for _ in range(2))
    idle.close()
    assert not list(tmp_path.iterdir()), "a new run wants its folder empty"
    writer.metrics(3, "first", {"accuracy": 0.5})
    writer.close()
    assert told == [("train/accuracy", 0.5, 3), "flushed", "closed"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_package_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(UserError, match=rf"train\.writers names {name}.*pip install {name}"):
        open_writers([name], tmp_path, {})
