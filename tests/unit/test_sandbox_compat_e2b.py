"""What a program displays as JSON is passed on, whatever it wrote."""

import json

import pytest

from rstar2.sandbox.execution import Display
from rstar2.sandbox.http import compat_e2b

pytestmark = pytest.mark.unit


def shown(text: str) -> object:
    display = Display({"text/plain": "", "application/json": text}, is_result=True)
    return json.loads(compat_e2b._result(display))["json"]


def test_json_of_any_depth_is_sent() -> None:
    """Python can read a text whose value it cannot write again: both have a limit, a few levels apart."""
    for depth in (1, 99, *range(900, 1010), 100_000):
        text = "[" * depth + "]" * depth
        assert shown(text) == (json.loads(text) if depth <= compat_e2b.MAX_NESTING else text)


def test_brackets_in_strings_hide_no_depth() -> None:
    text = '["' + "]" * 900 + '", ' + "[" * 990 + "]" * 990 + "]"
    assert shown(text) == text
    assert shown('{"a\\"[": "' + "[" * 900 + '"}') == {'a"[': "[" * 900}
