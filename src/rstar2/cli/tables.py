"""Tables that fit the terminal: cells wrap, and columns that do not fit go below the row. Nothing is cut."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rstar2.cli.console import Console

GAP = 2
"""Spaces between two columns."""


def print_table(
    console: "Console",
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    is_right: Sequence[bool] | None = None,
    title: str | None = None,
    last_style: str | None = None,
) -> None:
    """Cells are plain text. Where the columns need more than the width, the table is printed in parts, one below the
    other, each with the first column. `is_right` says which columns are numbers: those never wrap, but their names do.
    `last_style` marks the last row."""
    from rich.markup import escape
    from rich.table import Column, Table

    right = is_right or [False] * len(columns)
    least, natural = [], []
    for index, name in enumerate(columns):
        cells = [row[index] for row in rows]
        longest_cell = max(map(len, cells), default=0)
        least.append(max(_longest_word([name]), longest_cell if right[index] else _longest_word(cells)))
        natural.append(max(len(name), longest_cell))
    for number, part in enumerate(split_columns(least, console.width)):
        widths = share_width([least[each] for each in part], [natural[each] for each in part], console.width)
        if number:
            console.print()
        table = Table(
            *(
                Column(
                    escape(columns[index]),
                    width=width,
                    justify="right" if right[index] else "left",
                )
                for index, width in zip(part, widths, strict=True)
            ),
            box=None,
            pad_edge=False,
            title=None if title is None else escape(title),
            title_justify="left",
        )
        for row in rows:
            style = last_style if row is rows[-1] else None
            table.add_row(*(escape(row[index]) for index in part), style=style)
        console.print(table)


def split_columns(least: Sequence[int], width: int) -> list[list[int]]:
    """Which columns go together, by the widths that they need at least. The first is in every part."""
    parts: list[list[int]] = [[0]]
    for index in range(1, len(least)):
        part = parts[-1]
        needed = sum(least[each] + GAP for each in part) + least[index]
        if needed > width and len(part) > 1:
            parts.append([0, index])
        else:
            part.append(index)
    return parts


def share_width(least: Sequence[int], natural: Sequence[int], width: int) -> list[int]:
    """Every column gets its minimum; the rest goes first to the columns that need little more."""
    widths = list(least)
    spare = width - sum(least) - GAP * (len(least) - 1)
    order = sorted(range(len(least)), key=lambda index: natural[index] - least[index])
    for place, index in enumerate(order):
        more = max(0, min(natural[index] - least[index], spare // (len(order) - place)))
        widths[index] += more
        spare -= more
    return widths


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)
