"""Whatever stands in a row, a converter makes something of it that can be used, or says why not; it never fails."""

import copy
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import build_samples
from rstar2.data import Conversation, validate_conversations
from rstar2.data.build import LeftOutError, sources_of
from rstar2.data.build.parts import line_of
from rstar2.data.rows import Row
from rstar2.errors import UserError

pytestmark = pytest.mark.property

SOURCES = {source.name: source for kind in ("sft", "rl") for source in sources_of(kind)}
PLACES = st.lists(st.integers(0, 30), min_size=1, max_size=5)
TEXTS = st.text(max_size=20) | st.sampled_from(
    [
        "[f(a=1)]",
        "[Market Trends API(",
        "<functioncall> {",
        "```python\n(\n```",
        "{}",
        "[",
        "<think>",
        "USER:",
        "\ud800",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def damaged(value: Any, places: list[int], other: Any) -> Any:
    """The value with `other` somewhere in it: the places say which way to go down."""
    if not places or not isinstance(value, (dict, list)) or not value:
        if isinstance(value, str) and isinstance(other, str) and places:
            at = places[0] * len(value) // 31
            return value[:at] + other + value[at:]
        return other
    key = list(value)[places[0] % len(value)] if isinstance(value, dict) else places[0] % len(value)
    value[key] = damaged(value[key], places[1:], other)
    return value


@pytest.mark.parametrize("name", SOURCES)
@given(number=st.integers(0, 10), places=PLACES, other=VALUES)
def test_a_damaged_row_is_converted_or_left_out(name: str, number: int, places: list[int], other: Any) -> None:
    rows = getattr(build_samples, name.upper())
    values = damaged(copy.deepcopy(rows[number % len(rows)]), places, other)
    try:
        made = SOURCES[name].convert(Row(values, "row 1"))
        line = line_of(made)
    except (LeftOutError, UserError, UnicodeEncodeError):
        return
    assert made.id and json.loads(line)["id"] == made.id
    if isinstance(made, Conversation):
        assert validate_conversations([made]) == []
        roles = [message["role"] for message in made.messages]
        assert roles[-1] == "assistant" and ("assistant", "assistant") not in pairwise(roles)
    else:
        assert made.problem and made.answer
