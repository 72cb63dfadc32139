"""Sends metrics to services that people already use. All are optional; metrics.jsonl is always written."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rstar2.errors import UserError


class MetricWriter:
    """Satisfies `Observer`: passes each row on as numbers named `stage/metric`."""

    def __init__(self, write: Callable[[int, dict[str, float]], None], close: Callable[[], None]) -> None:
        self._write = write
        self.close = close

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        pass

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        kind = stage if stage.startswith(("sft", "eval:")) else "train"
        self._write(step, {f"{kind}/{name}": float(value) for name, value in values.items()})

    def waits_for(self, what: str) -> None:
        pass

    def rollouts_begun(self, num_begun: int) -> None:
        pass

    def rollouts(self, num_ended: int) -> None:
        pass

    def say(self, message: str) -> None:
        pass


def open_writers(names: Sequence[str], run: Path, config: Mapping[str, Any]) -> list[MetricWriter]:
    """Opens the writers of these names. UserError, before the run begins, names a package that a writer lacks."""
    makers = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
    return [makers[name](run, config) for name in names]


def _tensorboard(run: Path, _config: Mapping[str, Any]) -> MetricWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise _missing("tensorboard") from None

    @cache
    def writer() -> Any:
        """The writer, made with the first row because it makes a folder, and a new run's folder must be empty."""
        return SummaryWriter(str(run / "tensorboard"))

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer().add_scalar(name, value, step)
        writer().flush()

    def close() -> None:
        if writer.cache_info().currsize:
            writer().close()

    return MetricWriter(write, close)


def _wandb(run: Path, config: Mapping[str, Any]) -> MetricWriter:
    try:
        import wandb
    except ImportError:
        raise _missing("wandb") from None
    return _logged(wandb, run, config)


def _trackio(run: Path, config: Mapping[str, Any]) -> MetricWriter:
    try:
        import trackio
    except ImportError:
        raise _missing("trackio") from None
    return _logged(trackio, run, config)


def _logged(service: Any, run: Path, config: Mapping[str, Any]) -> MetricWriter:
    """The two services share one interface. Rows of the warm-up and of stages count their steps apart, so each row
    carries its own step as a number beside it."""
    service.init(project="rstar2", name=run.name, config=dict(config))

    def write(step: int, values: dict[str, float]) -> None:
        kind = next(iter(values)).partition("/")[0] if values else "train"
        service.log({f"{kind}/step": step, **values})

    return MetricWriter(write, service.finish)


def _missing(name: str) -> UserError:
    return UserError(f"train.writers names {name}, which is not installed: run `pip install {name}`, or remove it")
