"""Schemas of tools: what pydantic and MCP servers write is checked, what cannot be is refused, and no check hangs."""

import pickle
import socket
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from rstar2.agent import ToolSchema
from rstar2.agent.schema import ArgumentsCheck
from rstar2.errors import UserError

pytestmark = pytest.mark.unit


def tool(parameters: dict[str, Any]) -> ToolSchema:
    return ToolSchema("mine", "", {"type": "object", **parameters})


def mismatch_of(schema: dict[str, Any], value: object) -> str | None:
    """What is wrong with one argument `x`."""
    return tool({"properties": {"x": schema}}).mismatch({"x": value})


class Point(BaseModel):
    x: float
    y: float = 0.0


class Node(BaseModel):
    label: str
    children: list["Node"] = []


class Search(BaseModel):
    query: Annotated[str, Field(min_length=2, pattern="^[a-z ]+$")]
    near: Point | None = None
    order: Literal["new", "old"] = "new"
    limit: Annotated[int, Field(gt=0, le=50, multiple_of=5)] = 10
    tree: Node | None = None


SEARCH = ToolSchema("search", "", Search.model_json_schema())


@pytest.mark.parametrize(
    ("arguments", "clause"),
    [
        ({"query": "cats", "near": {"x": 1}, "order": "old", "limit": 5}, None),
        ({"query": "cats", "near": None, "tree": {"label": "a", "children": [{"label": "b"}]}}, None),
        ({}, "arguments lacks 'query'"),
        ({"query": "c"}, "arguments.query does not satisfy minLength 2"),
        ({"query": "CATS"}, 'arguments.query does not satisfy pattern "^[a-z ]+$"'),
        ({"query": "cats", "limit": 0}, "arguments.limit must be more than 0"),
        ({"query": "cats", "limit": 55}, "arguments.limit must be at most 50"),
        ({"query": "cats", "limit": 7}, "arguments.limit does not satisfy multipleOf 5"),
        ({"query": "cats", "order": "best"}, "arguments.order must be one of 'new', 'old'"),
        ({"query": "cats", "near": 3}, "arguments.near must be of type object or null, not integer"),
        ({"query": "cats", "near": {"y": 3}}, "arguments.near lacks 'x'"),
        ({"query": "cats", "near": {"x": "1"}}, "arguments.near.x must be of type number, not string"),
        (
            {"query": "cats", "tree": {"label": "a", "children": [{"label": "b", "children": [{"label": 3}]}]}},
            "arguments.tree.children[0].children[0].label must be of type string, not integer",
        ),
        (
            {"query": "cats", "near_by": 3},
            "arguments holds 'near_by', which is unknown; it may hold 'query', 'near', 'order', 'limit', 'tree'",
        ),
    ],
)
def test_what_pydantic_describes_is_checked(arguments: dict[str, Any], clause: str | None) -> None:
    assert SEARCH.mismatch(arguments) == clause


def test_the_model_reads_the_schema_as_it_was_given() -> None:
    parameters = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"x": {}}}
    before = repr(parameters)
    assert repr(ToolSchema("mine", "", parameters).as_function()["function"]["parameters"]) == before
    assert "additionalProperties" not in before


@pytest.mark.parametrize(
    ("schema", "value", "clause"),
    [
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["string", "null"]}, 1, "arguments.x must be of type string or null, not integer"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, [], "must be of type string or integer, not array"),
        ({"anyOf": [{"minimum": 5}, {"type": "string"}]}, 3, "arguments.x does not satisfy anyOf [{"),
        ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "matches several"),
        ({"const": "on"}, "off", 'must be "on"'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1, "b": "2"}, "arguments.x.b must be"),
        ({"type": "object", "additionalProperties": False}, {"a": 1}, "arguments.x holds 'a', which is unknown"),
        ({"type": "object"}, {"anything": [1.5]}, None),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": "1"}, "arguments.x.n_a must be of type integer"),
        ({"uniqueItems": True}, [1, 2, {"a": 1}, {"a": True}], None),
        ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], "does not satisfy uniqueItems"),
        ({"properties": {"secret": False}}, {"secret": 1}, "arguments.x holds something that is not allowed"),
        ({"$ref": "#/properties/x/$defs/small", "$defs": {"small": {"maximum": 9}}}, 10, "must be at most 9"),
        ({"enum": [f"value number {number}" for number in range(1000)]}, 1, "must be one of 'value number 0'"),
        ({"multipleOf": 0.1}, 10**400, "cannot be checked"),
    ],
)
def test_rules_of_the_draft(schema: dict[str, Any], value: object, clause: str | None) -> None:
    found = mismatch_of(schema, value)
    assert found is None if clause is None else found is not None and clause in found and len(found) <= 300


@pytest.mark.parametrize(
    ("parameters", "refused"),
    [
        ({"properties": {"a": {}}}, True),
        ({}, True),
        ({"properties": {"a": {}}, "additionalProperties": True}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^b$": {}}}, False),
        ({"anyOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/other"}], "$defs": {"other": {}}}, True),
        (
            {"anyOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"properties": {"b": {}}}}},
            False,
        ),
    ],
)
def test_a_name_that_nothing_lists_is_refused_unless_the_schema_allows_it(parameters: Any, refused: bool) -> None:
    found = tool(parameters).mismatch({"b": 1})
    assert (found is not None) == refused
    assert found is None or "holds 'b', which is unknown" in found


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"type": "string"}, "parameters.type must be 'object'"),
        ({"properties": {"a": {"type": "text"}}}, r"parameters\.properties\.a\.type: 'text' is not valid"),
        ({"properties": {"a": {"minLength": -3}}}, r"parameters\.properties\.a\.minLength: -3 is less"),
        ({"properties": {"a": {"pattern": "("}}}, r"parameters\.properties\.a\.pattern: '\(' is not a 'regex'"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, r"\$ref '#/\$defs/b' is not in the schema"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/b.json"}}}, "none is fetched"),
        ({"properties": {"a": {"$dynamicRef": "#b"}}}, r"\$dynamicRef is not supported"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "is not supported"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"tool mine: .*{sentence}"):
        tool(parameters)


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(UserError, match="nested too deep"):
        tool({"properties": {"a": schema}})


def test_nothing_is_fetched_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda address, *_: connections.append(address))
    with pytest.raises(UserError):
        tool({"properties": {"a": {"$ref": "http://127.0.0.1:9/b.json"}}})
    with pytest.raises(UserError):
        tool({"$id": "http://127.0.0.1:9/", "properties": {"a": {"$ref": "b.json"}}})
    assert connections == []


# Each of these would take minutes with backtracking, or without an end.
def test_a_pattern_takes_linear_time() -> None:
    assert mismatch_of({"pattern": "^(a+)+$"}, "a" * 5000 + "!") is not None
    assert mismatch_of({"patternProperties": {"^(a+)+$": False}}, {"a" * 5000 + "!": 1}) is None
    closed = {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert mismatch_of(closed, {"a" * 5000 + "!": 1}) is not None


def test_a_pattern_that_needs_backtracking_is_left_to_the_tool() -> None:
    assert mismatch_of({"pattern": "^(?!x)(a+)+$"}, "a" * 5000 + "!") is None


def test_a_recursive_schema_takes_linear_time() -> None:
    one, other = ({"properties": {"op": {"const": op}, "of": {"$ref": "#/$defs/any"}}} for op in ("add", "mul"))
    parameters = {
        "properties": {"x": {"$ref": "#/$defs/any"}},
        "$defs": {"any": {"anyOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/other"}]}, "one": one, "other": other},
    }
    value: dict[str, Any] = {"op": "wrong"}
    for _ in range(29):
        value = {"op": "mul", "of": value}
    assert tool(parameters).mismatch({"x": value}) is not None


def test_references_in_a_circle_end() -> None:
    circle = {
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    }
    assert tool(circle).mismatch({"x": 1}) is None


def test_unique_items_take_linear_time() -> None:
    assert mismatch_of({"uniqueItems": True}, [{"n": number} for number in range(20_000)]) is None


def test_a_schema_goes_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(SEARCH))
    assert copy == SEARCH
    assert copy.mismatch({}) == "arguments lacks 'query'"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: dict[str, int | list[str]]


def test_free_objects_inside_are_checked_by_their_values() -> None:
    schema = ToolSchema("strict", "", Strict.model_json_schema())
    assert schema.mismatch({"inner": {"a": 1, "b": ["c"]}}) is None
    assert schema.mismatch({"inner": {"a": None}}) == "arguments.inner.a must be of type integer or array, not null"
    assert schema.mismatch({"inner": {}, "other": 1}) == (
        "arguments holds 'other', which is unknown; it may hold 'inner'"
    )


@pytest.mark.parametrize("kind", ["string", "integer", "number", "boolean", "array", "object", "null"])
@pytest.mark.parametrize("value", ["", "1", 0, 1, 1.0, 1.5, True, None, [], [1], {}, {"a": 1}])
def test_the_short_way_for_plain_schemas_allows_nothing_that_the_validator_refuses(kind: str, value: object) -> None:
    properties = {"a": {"type": kind, "description": "a value"}, "b": {"type": "string", "default": ""}}
    check = ArgumentsCheck({"type": "object", "properties": properties, "required": ["a"]})
    for arguments in ({"a": value}, {"a": value, "b": ""}, {"a": value, "c": 1}, {"b": ""}, {}):
        if check._plain is not None and check._plain.surely_allows(arguments):
            assert next(check._validator.iter_errors(arguments), None) is None
            assert arguments.keys() <= properties.keys()


@pytest.mark.parametrize("rule", [{"minLength": 2}, {"enum": ["b"]}, {"pattern": "^b"}, {"const": "b"}])
def test_a_schema_with_a_further_rule_is_not_plain(rule: dict[str, Any]) -> None:
    check = ArgumentsCheck({"type": "object", "properties": {"a": {"type": "string", **rule}}})
    assert check.mismatch({"a": "a"}) is not None
