"""Golden files of official scorers: responses that we made up, and what the official code says of each.

The scripts beside this one make them. Each runs in a separate environment that has the official package, and imports
nothing of rstar2; `docs/evaluation.md` says how such an environment is made.
"""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "tests" / "golden"


def write_golden(name: str, official: dict[str, str], content: dict[str, Any]) -> None:
    """The same content gives the same bytes: no time stamp, no name."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps({"official": official, **content}, ensure_ascii=False, separators=(",", ":"))
    path = FOLDER / f"{name}.json.gz"
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A data set in JSON Lines, packed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
