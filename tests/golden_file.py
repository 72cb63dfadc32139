"""What official scorers said of responses that we made up; `scripts/parity` makes these files."""

import gzip
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "golden"


def read_golden(name: str) -> dict[str, Any]:
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        content = json.load(file)
    assert isinstance(content, dict)
    return content
