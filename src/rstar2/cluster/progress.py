"""How far a run has come, whatever it was taken back to since: what tells a bad hour from a hopeless case."""

from pathlib import Path

from rstar2.records import RunView
from rstar2.records.run_layout import RunLayout


def num_checkpoints(run: Path) -> int:
    """That were ever saved; 0 for a folder that is no run yet."""
    if not RunLayout(run).info.is_file():
        return 0
    return sum(1 for event in RunView(run).events() if event.kind == "checkpoint")
