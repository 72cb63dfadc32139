"""The reference names every field, and what it calls valid is valid."""

import pytest
from pydantic import TypeAdapter

from rstar2.config.explain import as_markdown, as_text, explain
from rstar2.config.fields import place_of
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

FIELDS = [field for section in explain() for field in section.fields]


def keys(query: str) -> list[str]:
    return [field.key for section in explain(query) for field in section.fields]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_every_field_says_what_it_does(field: object) -> None:
    assert len(field.description) > 30 and field.description.endswith("."), field.key  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", [field for field in FIELDS if field.required], ids=lambda field: field.key)
def test_examples_are_valid(field: object) -> None:
    path = tuple(0 if part == "N" else part for part in field.key.split("."))  # type: ignore[attr-defined]
    place = place_of(path)
    assert place.field is not None and place.path == path
    TypeAdapter(place.type).validate_python(field.example)  # type: ignore[attr-defined]


def test_queries_find_sections_keys_and_bare_names() -> None:
    assert keys("train.lr") == ["train.lr"]
    assert keys("lr") == ["sft.lr", "train.lr"]
    assert keys("stages.concise.steps") == keys("stages.0.steps") == ["stages.N.steps"]
    assert keys("data.mine.source") == ["data.NAME.source"]
    assert {key.split(".")[0] for key in keys("sandbox")} == {"sandbox"}
    assert "sandbox.limits.wall_s" in keys("sandbox")
    assert keys("[[stages]]")[0] == "stages.N.name"
    assert keys("stages.difficulty_filter") == keys("stages.hard.difficulty_filter") != []


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean train\.lr\?"):
        explain("trian.lr")


def test_both_pages_hold_every_field_once() -> None:
    text, markdown = as_text(explain()), as_markdown(explain())
    for field in FIELDS:
        assert text.count(f"  {field.key}  (") == 1
        assert markdown.count(f"| `{field.key}` |") == 1
    assert (
        'algo.selection  ("paper", "quotas", "release", "random", "off" or package.module:name; default: "paper")'
        in text
    )
    assert 'algo.penalty  ("both", "errors", "format" or "repetition"; default: "both")' in text
    assert "| `train.lr` | number, more than 0 | `1e-06` |" in markdown
