"""Rows of files to problems and conversations: every format, every name of a column, every mistake with its place."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rstar2.data.conversation_rows import conversations_of
from rstar2.data.problem_rows import problems_of
from rstar2.data.rows import Row, read_rows, stem
from rstar2.errors import UserError
from rstar2.records import Problem

pytestmark = pytest.mark.unit

ROWS = [{"id": "a", "problem": "What is 1+1?", "answer": "2"}, {"id": "b", "problem": "Two\u2028lines", "answer": 3}]


def write(path: Path, rows: Sequence[Any]) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def rows(*values: dict[str, Any]) -> list[Row]:
    return [Row(value, f"set.jsonl, line {number}") for number, value in enumerate(values, start=1)]


def one_problem(**values: Any) -> Problem:
    (problem,) = problems_of(rows(values), "set")
    return problem


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz", "set.json"])
def test_json_lines_by_any_name(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    assert [row.values for row in read_rows(path)] == ROWS
    assert [row.where for row in read_rows(path)] == [f"{path}, line 1", f"{path}, line 2"]


def test_a_json_array(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text("\n " + json.dumps(ROWS))
    assert [row.values for row in read_rows(tmp_path / "set.json")] == ROWS


def test_csv_keeps_long_cells_and_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_text('Question,Answer\n"a\nb",' + "9" * 200_000 + "\n")
    (row,) = read_rows(tmp_path / "set.csv")
    assert row.values == {"Question": "a\nb", "Answer": "9" * 200_000}


def test_parquet_with_nested_columns(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    values = {
        "prompt": [[{"role": "user", "content": "1+1?"}]],
        "reward_model": [{"ground_truth": "2", "style": "rule"}],
    }
    pyarrow.parquet.write_table(pyarrow.table(values), tmp_path / "set.parquet")
    (problem,) = problems_of(read_rows(tmp_path / "set.parquet"), "set")
    assert (problem.problem, problem.answer) == ("1+1?", "2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.jsonl", b'{"a": 1}\n{"a": \n', r"set\.jsonl, line 2: not JSON \(column 7: Expecting value\)"),
        ("set.json", b'[{"a": 1},\n {"a" 2}]\n', r"set\.json: not JSON \(line 2, column 7: Expecting ':' delimiter\)"),
        ("set.jsonl", b"[1]\n", r"line 1: expected an object with columns.*found list"),
        ("set.jsonl", b"\xff\xfe\n", "not UTF-8"),
        ("set.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1000, mtime=0)[:-20], "not a complete gzip file"),
        ("set.jsonl.gz", b"plain", "not a complete gzip file"),
        ("set.parquet", b"plain", "not a readable Parquet file"),
        ("set.txt", b"plain", "none of the endings"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_rows(tmp_path / name))


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not there"):
        list(read_rows(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="is a folder"):
        list(read_rows(tmp_path))


def test_stems() -> None:
    assert [stem(name) for name in ("a.jsonl.gz", "b.parquet", "c.v1.json")] == ["a", "b", "c.v1"]


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({"problem": "p", "answer": 7}, "7"),
        ({"Question": "p", "Answer": " 7 "}, "7"),
        ({"question": "p", "answer": "Six and one.\n#### 7"}, "7"),
        ({"prompt": "p", "solution": "7"}, "7"),
        ({"problem": "p", "solution": r"It is \boxed{6}, no: \boxed{7}."}, "7"),
        ({"problem": "p", "answer": None, "reward_model": {"ground_truth": "7"}}, "7"),
        ({"problem": "p", "final_answer": r"\frac{1}{7}"}, r"\frac{1}{7}"),
    ],
)
def test_names_and_forms_of_a_gold(values: dict[str, Any], answer: str) -> None:
    problem = one_problem(**values)
    assert (problem.problem, problem.answer) == ("p", answer)


def test_instructions_around_a_dapo_problem_are_taken_off() -> None:
    content = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 2+2?\n\nRemember to put your "
        'answer on its own line after "Answer:".'
    )
    problem = one_problem(prompt=[{"role": "user", "content": content}], reward_model={"ground_truth": "4"})
    assert problem.problem == "What is 2+2?"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"text": "p", "answer": "1"},
            "no column for the problem; the columns are text, answer: call it one of problem, question, prompt",
        ),
        ({"problem": "p", "gold": "1"}, "no column for the answer"),
        ({"problem": "p", "answer": None}, "set.jsonl, line 1: the answer is empty"),
        ({"problem": "p", "answer": "  "}, "the answer is empty"),
        ({"problem": "p", "answer": "#### "}, "the answer is empty"),
        ({"problem": " ", "answer": "1"}, "the problem is empty"),
        ({"problem": "p", "answer": ["1"]}, "must be a text or a number, not list"),
        ({"problem": "p", "answer": True}, "must be a text or a number, not bool"),
        ({"problem": "p", "answer": float("nan")}, "must be a text or a number"),
        ({"problem": {"a": 1}, "answer": "1"}, "the problem must be a text"),
        ({"problem": "p", "solution": "words " * 50}, r"no \\boxed"),
        ({"prompt": [{"role": "user", "content": "a"}] * 2, "answer": "1"}, "2 user messages"),
    ],
)
def test_a_bad_row_says_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        one_problem(**values)


def test_equal_ids_name_both_rows() -> None:
    row = {"id": "x", "problem": "p", "answer": "1"}
    with pytest.raises(UserError, match=r"line 2: the id 'x' is also that of set\.jsonl, line 1"):
        list(problems_of(rows(row, row), "set"))


def test_rows_without_ids_get_stable_unique_ones() -> None:
    row, other = {"problem": "p", "answer": "1"}, {"problem": "q", "answer": "1"}
    first = [problem.id for problem in problems_of(rows(row, other, row), "set")]
    assert len(set(first)) == 3 and first[2] == f"{first[0]}-2"
    assert [problem.id for problem in problems_of(rows(other, row), "other")] == [first[1], first[0]]


def test_metadata_comes_back_as_texts() -> None:
    assert one_problem(problem="p", answer="1", metadata={"a": "b", "c": [1]}).metadata == {"a": "b", "c": "[1]"}


CALL = {"function": {"name": "run", "arguments": '{"code": "1"}'}}


def test_conversations_in_both_forms_are_the_same() -> None:
    openai = {
        "id": 1,
        "tools": json.dumps([{"name": "run", "parameters": {}}]),
        "messages": [
            {"role": "user", "content": "go", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "1"},
        ],
    }
    sharegpt = {
        "id": 2,
        "tools": [{"type": "function", "function": {"name": "run", "parameters": {}}}],
        "conversations": [
            {"from": "human", "value": "go"},
            {"from": "function_call", "value": '{"name": "run", "arguments": {"code": "1"}}'},
            {"from": "observation", "value": "1"},
        ],
    }
    first, second = conversations_of(rows(openai, sharegpt), "set")
    assert first.messages == second.messages
    assert first.tools == second.tools
    assert first.messages[1]["tool_calls"][0]["function"]["arguments"] == {"code": "1"}
    assert (first.id, first.source) == ("1", "set")


def test_instructions_with_and_without_an_input() -> None:
    first, second = conversations_of(
        rows(
            {"instruction": "Add.", "input": "1 2", "output": "3"}, {"instruction": "Go.", "input": "", "output": "ok"}
        ),
        "set",
    )
    assert [message["content"] for message in first.messages] == ["Add.\n\n1 2", "3"]
    assert [message["content"] for message in second.messages] == ["Go.", "ok"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "x"}, "no column for the messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "nothing to learn"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role must be one of"),
        ({"messages": [{"role": "assistant", "content": ["x"]}]}, "content must be a text"),
        ({"messages": "not json"}, "not JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "run"}]}]}, "function with a name"),
        ({"conversations": [{"from": "martian", "value": "x"}]}, "from 'martian'"),
    ],
)
def test_a_bad_conversation_says_what_is_wrong(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(conversations_of(rows(values), "set"))


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz", "set.csv", "set.json"])
def test_text_that_is_not_utf_8_is_found_by_its_line(tmp_path: Path, name: str) -> None:
    good = b'{"problem": "p", "answer": "1"}\n' * 5000
    content = good + b'{"problem": "caf\xe9"}\n' + good
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(UserError, match=r"set\.\w+(\.gz)?, line 5001, byte 17 \(0xe9\): not UTF-8 text"):
        list(read_rows(path))
