"""What is taken for a closing call of print is one, whatever stands before it."""

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rstar2.sandbox.slots.interpreter import ends_with_print

pytestmark = pytest.mark.property

PIECES = st.sampled_from(
    [
        *("print(1)", "print(", ")", "(", "[", "]", "{", "}", "foo(", "'", '"', '"""', "\\", "\n", "\n", " ", "#", ";"),
        *(",", "x = 1", "lambda: ", "if x: ", "print('a')", 'print(")")', "print(f(1))", "\r\n", "\x0c", "0"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join))
@example("foo(\nprint('('))")
@example("lambda: \\\nprint(1)")
@example("[\nprint(1), 2]")
@example("print(1),print(1)")
@example("print(1) or (2)")
@example("x = 5\nprint(x)\n\n")
def test_it_is_a_call_of_print_or_no_program(source: str) -> None:
    if not ends_with_print(source.encode()):
        return
    try:
        last = ast.parse(source).body[-1]
    except SyntaxError:
        return
    while isinstance(last, ast.If):  # `if x: print(1)` on one line has no value to show either
        last = last.body[-1]
    assert isinstance(last, ast.Expr)
    assert isinstance(last.value, ast.Call)
    assert isinstance(last.value.func, ast.Name)
    assert last.value.func.id == "print"


@pytest.mark.parametrize("source", ["print(1)", "x = 2\nprint(x, 3)\n", "print('a b')", "print(f(1) + 2)"])
def test_the_usual_ends_are_seen(source: str) -> None:
    assert ends_with_print(source.encode())
