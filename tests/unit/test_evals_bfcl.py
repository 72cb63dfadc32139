"""BFCL's rules, one by one: types, strings, optional arguments, several calls, none."""

from typing import Any

import pytest

from rstar2.data import FunctionCallTask
from rstar2.evals.bfcl.judge import asked_messages, calls_in
from rstar2.evals.bfcl.match import is_answerable, matches
from rstar2.evals.bfcl.source_text import java_value, js_value
from rstar2.records import Problem, ToolCall

pytestmark = pytest.mark.unit

BOOK = {
    "name": "travel.book",
    "description": "Book a trip.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string"},
            "nights": {"type": "integer"},
            "price": {"type": "float"},
            "late": {"type": "boolean"},
            "stops": {"type": "array", "items": {"type": "string"}},
            "guest": {"type": "dict"},
            "rooms": {"type": "array", "items": {"type": "dict"}},
        },
        "required": ["city"],
    },
}
GOLD = {
    "city": ["New York", "NYC"],
    "nights": [3, ""],
    "price": [100.0, ""],
    "late": [True, ""],
    "stops": [["Rome, Italy", "Paris"], ""],
    "guest": [{"name": ["Ann"], "age": [30, ""]}, ""],
    "rooms": [[{"beds": [2]}, {"beds": [1]}], ""],
}


def call_of(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall("", name, arguments)


def task(category: str = "simple", *golds: dict[str, Any]) -> FunctionCallTask:
    return FunctionCallTask(category, ({"role": "user", "content": "?"},), (BOOK,), golds)


@pytest.mark.parametrize(
    ("arguments", "is_right"),
    [
        ({"city": "New York"}, True),
        ({"city": "new-york."}, True),
        ({"city": "Boston"}, False),
        ({}, False),
        ({"city": "NYC", "nights": 3}, True),
        ({"city": "NYC", "nights": 3.0}, False),
        ({"city": "NYC", "nights": "3"}, False),
        ({"city": "NYC", "price": 100}, True),
        ({"city": "NYC", "price": 99.0}, False),
        ({"city": "NYC", "late": True}, True),
        ({"city": "NYC", "late": 1}, False),
        ({"city": "NYC", "stops": ["rome italy", "PARIS"]}, True),
        ({"city": "NYC", "stops": ["Paris", "Rome, Italy"]}, False),
        ({"city": "NYC", "stops": [1, 2]}, False),
        ({"city": "NYC", "guest": {"name": "ann"}}, True),
        ({"city": "NYC", "guest": {"age": 30}}, False),
        ({"city": "NYC", "guest": {"name": "Ann", "age": 31}}, False),
        ({"city": "NYC", "rooms": [{"beds": 2}, {"beds": 1}]}, True),
        ({"city": "NYC", "rooms": [{"beds": 2}]}, False),
        ({"city": "NYC", "unknown": 1}, False),
    ],
)
def test_an_argument_is_right_by_its_type_and_value(arguments: dict[str, Any], is_right: bool) -> None:
    assert matches(task("simple", {"travel.book": GOLD}), [call_of("travel.book", arguments)]) is is_right


def test_the_name_and_the_number_of_calls_count() -> None:
    gold, call = {"travel.book": {"city": ["NYC"]}}, call_of("travel.book", {"city": "NYC"})
    assert not matches(task("simple", gold), [])
    assert not matches(task("simple", gold), [call, call])
    assert not matches(task("simple", gold), [call_of("travel_book", {"city": "NYC"})])


def test_parallel_calls_may_come_in_any_order_but_each_once() -> None:
    golds = [{"travel.book": {"city": ["Rome"]}}, {"travel.book": {"city": ["Paris"]}}]
    rome, paris = call_of("travel.book", {"city": "Rome"}), call_of("travel.book", {"city": "Paris"})
    assert matches(task("parallel", *golds), [paris, rome])
    assert not matches(task("parallel", *golds), [rome, rome])


def test_no_call_is_right_where_no_function_helps() -> None:
    call = call_of("travel.book", {})
    assert matches(task("irrelevance"), [])
    assert not matches(task("live_irrelevance"), [call])
    assert matches(task("live_relevance"), [call])
    assert not matches(task("live_relevance"), [])


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        ({"travel.book": {"city": ["NYC"]}}, True),
        ({"travel.book": {"city": ["NYC"], "planet": ["Mars"]}}, False),
        ({"travel.book": {"city": []}}, False),
        ({"travel.book": {"nights": [3]}}, False),
    ],
)
def test_a_gold_that_no_call_can_meet_is_found(gold: dict[str, Any], expected: bool) -> None:
    assert is_answerable(task("simple", gold)) is expected


def test_calls_are_read_from_text_and_broken_ones_are_none() -> None:
    text = 'First <tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call> then <tool_call>{oops</tool_call>'
    assert [(call.name, call.arguments) for call in calls_in(text)] == [("a", {"x": 1})]


def test_the_prompt_has_the_functions_in_json_schema_and_keeps_the_tasks_own_system_text() -> None:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Book."})
    asked = FunctionCallTask("simple", messages, (BOOK,), ({"travel.book": GOLD},))
    system, user = asked_messages(Problem("p", "Book.", "", metadata=asked.metadata))
    assert user == {"role": "user", "content": "Book."}
    assert system["content"].startswith("Be brief.\n\n# Tools")
    assert '"price": {"type": "number"}' in system["content"]
    assert '"type": "dict"' not in system["content"]


def test_java_arguments_are_asked_for_as_source_text() -> None:
    properties = {"ids": {"type": "ArrayList", "items": {"type": "long"}, "description": "The ids."}}
    function = {"name": "f", "description": "Do.", "parameters": {"type": "dict", "properties": properties}}
    asked = FunctionCallTask("java", ({"role": "user", "content": "Go."},), (function,), ())
    system, _ = asked_messages(Problem("p", "Go.", "", metadata=asked.metadata))
    assert "Do. Note that the provided function is in Java 8 SDK syntax." in system["content"]
    assert '"The ids. This is Java ArrayList type parameter in string representation.' in system["content"]
    assert '"type": "ArrayList"' not in system["content"]


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("12", "integer", None, 12),
        ("12.0", "integer", None, "12.0"),
        ("12L", "long", None, 12),
        ("12", "long", None, "12"),
        ("1.5f", "float", None, 1.5),
        ("true", "boolean", None, True),
        ("isOpen", "boolean", None, "isOpen"),
        ("new int[]{1, 2}", "Array", "integer", [1, 2]),
        ('new ArrayList<>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<Long>() {{ add(1L); add(2L); }}", "ArrayList", "long", [1, 2]),
        ('new HashMap<String, Object>() {{ put("a", 1); put("b", "x"); }}', "HashMap", None, {"a": 1, "b": "x"}),
        ("new HashMap<>()", "HashMap", None, {}),
        ("options", "HashMap", None, "options"),
    ],
)
def test_java_literals_are_read(text: str, kind: str, items: str | None, value: Any) -> None:
    assert java_value(text, kind, items) == value


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("'a'", "String", None, "a"),
        ("12n", "Bigint", None, 12),
        ("[1, 'two', true]", "array", None, [1, "two", True]),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 2], [3, 4]]", "array", None, [[1, 2], [3, 4]]),
        ("[[1], 2, [3]]", "array", None, [[1], [3]]),
        ("{a: 1, 'b': [1, 2], c: name}", "dict", None, {"a": 1, "b": [1, 2], "c": "name"}),
        ("options", "dict", None, "options"),
    ],
)
def test_javascript_literals_are_read(text: str, kind: str, items: str | None, value: Any) -> None:
    assert js_value(text, kind, items) == value


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", ["[[1],[1]", "[1],", "[", " ", "new Array([", "{a:", "a:,", "]", "],[", "9"])
def test_no_literal_hangs_the_javascript_reader(flood: str) -> None:
    for length in (4000, 100_000):
        for kind in ("array", "dict", "float"):
            js_value(("[[1]," + flood * length)[:length], kind)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "flood", [" ", "new ArrayList<>() {{ ", "new HashMap<>() { ", "{", "add(", "put(", "new ", "9"]
)
def test_no_literal_hangs_the_java_reader(flood: str) -> None:
    for length in (4000, 100_000):
        for kind in ("Array", "ArrayList", "HashMap", "long"):
            java_value(("new HashMap<>() {" + flood * length)[:length], kind)
