"""Random recipes survive being written out, and random junk is refused in sentences, never in any other way."""

import json
from typing import Any, Literal, get_args, get_origin

import annotated_types
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rstar2.config import Recipe, load_recipe, parse_recipe, shipped_recipes, to_toml
from rstar2.config.explain import explain
from rstar2.config.fields import place_of
from rstar2.config.positions import key_lines
from rstar2.errors import UserError

pytestmark = pytest.mark.property

TEXTS = [recipe.text for recipe in shipped_recipes().values()]
TREES = [load_recipe(name).model_dump(exclude_none=True) for name in shipped_recipes()]
KEYS = [field.key for section in explain() for field in section.fields]
WORDS = sorted({word for key in KEYS for word in key.split(".")})
PATTERNED = {
    "name": r"[A-Za-z0-9][A-Za-z0-9._-]*",
    "sandbox.base_url": r"https?://[!-~]+",
    "stages.N.name": r"[A-Za-z][A-Za-z0-9_-]*",
    "data.NAME.source": r"file:[^\n]+",
}


def plain_values(kind: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Values of a field's type, within its bounds."""
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is tuple:
        least = next((item.min_length for item in metadata if isinstance(item, annotated_types.MinLen)), 0)
        return st.lists(plain_values(get_args(kind)[0], []), min_size=least, max_size=3).map(tuple)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(min_size=1, max_size=20)
    bounds = {
        name: getattr(item, name) for item in metadata for name in ("ge", "gt", "le", "lt") if hasattr(item, name)
    }
    low, high = bounds.get("ge", bounds.get("gt", 0)), bounds.get("le", bounds.get("lt"))
    if kind is int:
        return st.integers(low + ("gt" in bounds), low + 3000 if high is None else high - ("lt" in bounds))
    return st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds, allow_infinity=False)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """A bundled recipe with some of its fields drawn anew; impossible ones are thrown away."""
    tree = json.loads(json.dumps(draw(st.sampled_from(TREES))))
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=5, unique=True)):
        names = {
            "N": draw(st.integers(0, len(tree["stages"]) - 1)),
            "NAME": draw(st.sampled_from(sorted(tree["data"]))),
        }
        *outer, last = (names.get(part, part) for part in key.split("."))
        node: Any = tree
        for part in outer:
            node = node[part] if isinstance(node, list) else node.setdefault(part, {})
        place = place_of((*outer, last))
        assert place.field is not None
        pattern = PATTERNED.get(key)
        values = st.from_regex(pattern, fullmatch=True) if pattern else plain_values(place.type, place.field.metadata)
        node[last] = draw(values)
    try:
        return Recipe.model_validate(tree)
    except ValueError:
        assume(False)
        raise


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(recipes())
def test_written_out_and_read_back_a_recipe_is_the_same(recipe: Recipe) -> None:
    text = to_toml(recipe)
    assert parse_recipe(text) == recipe
    assert to_toml(parse_recipe(text)) == text


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(recipes())
def test_every_key_is_found_on_its_line(recipe: Recipe) -> None:
    text = to_toml(recipe)
    lines = text.split("\n")
    for path, number in key_lines(text).items():
        if isinstance(path[-1], str):
            assert path[-1] in lines[number - 1]
    assert {path for path in key_lines(text) if len(path) == 1} == {
        (key,) for key in recipe.model_dump(exclude_none=True)
    }


def inline(value: Any) -> str:
    """Any tree as one TOML value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(inline(entry) for entry in value)}]"
    return (
        json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
        if not isinstance(value, str)
        else quoted(value)
    )


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


junk = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text("ab. \n", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def loads_or_refuses(text: str, overrides: list[str] | None = None) -> None:
    try:
        assert isinstance(parse_recipe(text, overrides or [], file="junk.toml"), Recipe)
    except UserError as error:
        assert "Input should" not in str(error) and "pydantic" not in str(error)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(Recipe.model_fields)), junk, max_size=8))
def test_junk_in_the_right_places_gives_sentences(tree: dict[str, Any]) -> None:
    loads_or_refuses("\n".join(f"{key} = {inline(value)}" for key, value in tree.items()))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200) | st.text("[]{}=\"'.#\n abc019", max_size=60))
def test_any_text_gives_sentences(text: str) -> None:
    loads_or_refuses(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TEXTS), st.data())
def test_damaged_recipes_give_sentences(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 30)))
    loads_or_refuses(text[:start] + data.draw(st.text('[]{}="\n .1x', max_size=4)) + text[end:])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=20) | st.tuples(st.sampled_from(KEYS), junk.map(inline)).map("=".join), max_size=3))
def test_any_override_gives_sentences(overrides: list[str]) -> None:
    loads_or_refuses(TEXTS[0], [override.replace("NAME", "train").replace("N.", "0.") for override in overrides])
