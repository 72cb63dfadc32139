"""Every field of a recipe is read by something: one that nothing reads promises what nobody does."""

import ast
import inspect
from pathlib import Path

import pytest
from pydantic import Field
from recipe_reads import fields, reads, sections

import rstar2
from rstar2.config.section import Section

pytestmark = pytest.mark.unit

PACKAGE = Path(rstar2.__file__).parent


def test_no_field_of_a_recipe_is_read_by_nobody() -> None:
    known = sections()
    # What checks a recipe is no use of it; a property of a section is.
    files = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "config"]
    sources = [*(path.read_text() for path in files), *map(inspect.getsource, known.values())]
    unread = fields(known) - reads(map(ast.parse, sources), known)
    assert not unread, f"nothing reads {sorted(unread)}"


class Inner(Section):
    kind: str = "a"
    size: int = 1
    width: int = 1


class Outer(Section):
    inner: Inner = Field(Inner())
    others: tuple[Inner, ...] = ()
    name: str = "n"


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("def f(outer: Outer): return outer.inner.kind", {"kind"}),
        ("def f(tool): return tool.kind", set()),
        ("def f(outer: Outer, tool): return tool.kind, outer.name", {"name"}),
        ("def f(outer: 'Outer | None'):\n    inner, name = outer.inner, 1\n    return inner.size", {"size"}),
        ("def f(outer: Outer): return [each.width for n, each in enumerate(outer.others)]", {"width"}),
        (
            "class A:\n    def __init__(self, o: Outer): self._o = o\n    def f(self): return self._o.name",
            {"name"},
        ),
        ("def f(outer: Outer):\n    outer.inner.size = 3", set()),
        ("def f(outer: Outer): return outer.inner.model_dump()", {"kind", "size", "width"}),
        ("from elsewhere import Outer\ndef f(outer: Outer): return outer.name", set()),
        (
            "class A:\n    size: int\n    def of(cls, outer: Outer): return pick(cls, outer.inner, width=1)",
            {"size"},
        ),
        ("def make() -> Outer: ...\ndef f(): return make().name", {"name"}),
    ],
)
def test_the_scan_sees_a_reading_and_nothing_else(source: str, read: set[str]) -> None:
    known = sections(Outer)
    assert {name for _, name in reads([ast.parse(source)], known)} - {"inner", "others"} == read
