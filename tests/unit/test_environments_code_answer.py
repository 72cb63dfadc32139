"""The program in a model's text, its form, and the comparison of outputs and values."""

from collections import Counter, OrderedDict, namedtuple
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rstar2.environments.code.answer import extract_program, format_penalty
from rstar2.environments.code.calls import batches_of
from rstar2.environments.code.candidate_program import answer
from rstar2.environments.code.compare import same_output, same_value
from rstar2.environments.code.values import decode, encode

pytestmark = pytest.mark.unit


def fenced(program: str, language: str = "python") -> str:
    return f"```{language}\n{program}\n```"


@pytest.mark.parametrize(
    ("turns", "program", "penalty"),
    [
        ([f"<answer>\n{fenced('x = 1')}\n</answer>"], "x = 1", 0.0),
        ([f"<answer>{fenced('x = 1', '')}</answer>"], "x = 1", 0.0),
        (["<answer>\nx = 1\n</answer>"], "x = 1", 0.0),
        (["<answer>```python\nx = 1\n</answer>"], "x = 1", 0.0),
        (["<answer>\n```python\nx = 1\n</answer>"], "x = 1", 0.0),
        ([f"<answer>\n{fenced('x = 1')}\nor\n{fenced('x = 2', 'py')}\n</answer>"], "x = 2", 1.0),
        ([f"{fenced('draft')}\n<answer>\n{fenced('x = 1')}\n</answer>"], "x = 1", 0.0),
        ([f"<answer>\n{fenced('old')}\n</answer>", f"<answer>\n{fenced('new')}\n</answer>"], "new", 0.5),
        (["call", f"It is\n{fenced('x = 1')}\nDone."], "x = 1", 1.0),
        ([fenced("early"), "no program"], None, 1.0),
        (["<answer> </answer>"], None, 1.0),
        ([f"{fenced('draft')}\n<answer></answer>"], None, 1.0),
        ([f"<answer>\n{fenced('  x = 1')}\n</answer>"], "  x = 1", 0.0),
        (["<answer>\n```python\ns = '''\n```text\n'''\n```\n</answer>"], "s = '''\n```text\n'''", 0.0),
        ([f"{fenced('mine')}\n<answer>\n{fenced('')}\n</answer>"], None, 1.0),
        ([], None, 1.0),
    ],
)
def test_extraction(turns: list[str], program: str | None, penalty: float) -> None:
    assert extract_program(turns) == program
    assert format_penalty(turns) == penalty


@pytest.mark.parametrize(
    ("printed", "expected", "is_same"),
    [
        ("3\n", "3", True),
        ("1 2 \n3\n\n", "1 2\n3", True),
        ("1.50 2", "1.5 2.0", True),
        ("yes", "YES", False),
        ("1  2", "1 2", True),
        ("a  b", "a b", False),
        ("1\n2", "1 2", False),
        ("1", "1\n1", False),
        ("", "", True),
        ("", "0", False),
        ("sNaN", "1", False),
        ("nan", "nan", True),
        ("NaN", "nan", False),
        ("1e999999999", "1", False),
        ("0.30000000000000004", "0.3", False),
    ],
)
def test_output(printed: str, expected: str, is_same: bool) -> None:
    assert same_output(printed, expected) is is_same


def test_values_of_json() -> None:
    assert same_value(((1, 2), [3]), [[1, 2], [3]])
    assert not same_value([1], [1, 1])
    assert not same_value({1}, [1])
    assert not same_value(object(), 1)


def refuse(value: object) -> Any:
    raise TypeError(type(value).__name__)


class Chameleon(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def test_plain_data_crosses_as_it_is() -> None:
    values = [None, True, -3, 1 << 200, 0.1, 1e400, "é\ud800", b"\x00", 2j, [1, (2, {3})], {(1, 2): frozenset("ab")}]
    values += [Decimal("1.10"), Fraction(1, 3), date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6), timedelta(1, 2, 3)]
    values += [Counter("aab"), OrderedDict(a=1), namedtuple("P", "x")(1), np.int64(3), np.float64(0.5), np.bool_(True)]
    for value in values:
        crossed = decode(encode(value, refuse), refuse)
        assert crossed == value
        assert not isinstance(crossed, np.generic)
    assert (decode(encode(np.eye(2), refuse), refuse) == np.eye(2)).all()
    assert type(decode(encode(Chameleon("a"), refuse), refuse)) is str


@pytest.mark.parametrize(
    "document",
    [{"make": ["os.system", "true"]}, {"builtin": "exec"}, {"eval": "1"}, {}, {"int": 3}, {"set": [[1]]}, {"tuple": 3}],
)
def test_what_is_no_value_is_refused(document: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(document, refuse)


def test_a_call_is_answered_with_data_or_what_it_raised() -> None:
    class Own:
        pass

    def f(xs: list[int]) -> list[int]:
        xs.append(1)
        return xs

    def g() -> None:
        raise KeyError("k")

    program, objects = {"f": f, "g": g, "own": Own}, {}

    def called(name: str, *arguments: Any) -> Any:
        parts = [{"ref": f"name:{name}"}, list(arguments), {"dict": []}]
        return answer({"id": name, "kind": "call", "parts": parts}, objects, program)

    assert called("f", [0]) == {"value": [0, 1], "arguments": [[0, 1]]}
    assert called("g") == {"raised": ["KeyError", "'k'"]}
    assert called("own") == {"value": {"ref": "own.0"}}
    assert called("missing") == {"raised": ["NameError", "name 'missing' is not defined"]}
    assert answer({"id": "s", "kind": "str", "parts": [{"ref": "own.0"}]}, objects, program)["value"].startswith("<")


def test_statements_that_share_no_object_run_apart() -> None:
    calls = [
        {"id": "a", "step": 1, "parts": [{"ref": "name:f"}, [3]]},
        {"id": "b", "step": 2, "parts": [{"ref": "name:f"}, [4]]},
        {"id": "c", "step": 1, "parts": [{"ref": "a.0"}, "x"]},
    ]
    assert [[call["id"] for call in batch] for batch in batches_of(calls)] == [["a", "c"], ["b"]]
    shared = [*calls, {"id": "d", "step": 2, "parts": [{"ref": "name:f"}, [{"tuple": [{"ref": "a"}]}]]}]
    assert [[call["id"] for call in batch] for batch in batches_of(shared)] == [["a", "b", "c", "d"]]
