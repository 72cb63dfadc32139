"""Arena-Hard: open requests. There is no gold; a judge model compares responses."""

from collections.abc import Iterable, Iterator

from rstar2.data.cells import as_text, optional_text, require
from rstar2.data.rows import Row
from rstar2.records import Problem


def judged_problems(rows: Iterable[Row], source: str) -> Iterator[Problem]:
    for row in rows:
        _, asked = require(row, ("prompt", "turns"), "prompt")
        if isinstance(asked, list):
            asked = asked[0].get("content") if asked and isinstance(asked[0], dict) else None
        row_id = as_text(require(row, ("id", "uid", "question_id"), "id")[1], row, "id")
        cluster = optional_text(row, ("cluster", "subcategory", "category"))
        yield Problem(row_id, as_text(asked, row, "prompt"), "", source, subject=cluster)
