"""Tables on 80 columns: every word whole, every cell there, nothing beyond the edge."""

import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from rstar2.cli.tables import print_table, split_columns

pytestmark = pytest.mark.unit

WIDTH = 80


def printed(columns: Sequence[str], rows: Sequence[Sequence[str]], **options: object) -> str:
    console = Console(width=WIDTH, force_terminal=False, record=True, quiet=False)
    print_table(console, columns, rows, **options)  # type: ignore[arg-type]
    return console.export_text()


def assert_fits(text: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    assert all(len(line.rstrip()) <= WIDTH for line in text.splitlines()), text
    shown = re.findall(r"\S+", text)
    for cell in (*columns, *(cell for row in rows for cell in row)):
        for word in cell.split():
            assert word in shown, (word, text)


def test_a_small_table_is_one_piece() -> None:
    columns, rows = ("set", "rows"), [("aime24", "30"), ("math500", "500")]
    text = printed(columns, rows, is_right=[False, True])
    assert text.splitlines() == ["set      rows", "aime24     30", "math500   500"]


def test_long_cells_wrap_between_words() -> None:
    columns = ("name", "licence", "what it is")
    rows = [("bfcl_multi_turn", "CC BY-NC-SA 4.0; problems (c) HMMT", "several turns with simulated services " * 4)]
    assert_fits(printed(columns, rows), columns, rows)


def test_the_scores_of_an_evaluation_fit() -> None:
    names = ("problems", "avg@k", "95% interval", "undecided", "avg@k if wrong", "pass@k", "maj@k")
    columns, rows = (
        ("benchmark", *names),
        [("file:held_out.jsonl", "60 x 4", "64.6", "56.3 to 72.1", "0", *["93.3"] * 3)],
    )
    assert_fits(printed(columns, rows), columns, rows)
    names = ("tokens", "turns", "calls", "tool errors", "truncated", "no answer", "time")
    columns, rows = (
        ("benchmark", *names),
        [("file:held_out.jsonl", "59", "2.0", "1.0", "3.3%", "1.2%", "0.8%", "21.5s")],
    )
    assert_fits(printed(columns, rows), columns, rows)


def test_columns_without_room_go_below_with_the_names_of_the_rows() -> None:
    columns = ("model", *(f"benchmark_number_{n}" for n in range(9)))
    rows = [(f"some-model-{n}B", *(f"{n}{m}.{m}%" for m in range(9))) for n in range(3)]
    text = printed(columns, rows, is_right=[False, *[True] * 9], title="scores")
    assert_fits(text, columns, rows)
    assert text.count("some-model-1B") == len(text.split("\n\n")) > 1


def test_numbers_keep_their_unit() -> None:
    columns = ("stage", *(f"a rather long name {n}" for n in range(6)))
    rows = [("first", *["1,234.5 min"] * 6)]
    text = printed(columns, rows, is_right=[False, *[True] * 6])
    assert_fits(text, columns, rows)
    assert text.count("1,234.5 min") == 6


def test_a_single_column_wider_than_the_screen_is_not_lost() -> None:
    assert split_columns([10, 100, 10], 80) == [[0, 1], [0, 2]]
    assert split_columns([10, 20, 20], 80) == [[0, 1, 2]]
    assert split_columns([100], 80) == [[0]]


def test_text_is_not_markup() -> None:
    assert "[bold]x" in printed(("[name]",), [("[bold]x",)])
