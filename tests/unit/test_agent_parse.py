"""Tool calls out of text: good ones, several at once, and every kind of malformed one with its type and its advice."""

import json

import pytest

from rstar2.agent import ToolSchema
from rstar2.agent.parse import CLOSE, MAX_NESTING, OPEN, ParsedCall, parse_calls
from rstar2.agent.python_tools import JupyterTool, PythonTool
from rstar2.records import StopReason, ToolStatus, Turn
from rstar2.records.codec import decode, encode

pytestmark = pytest.mark.unit

FREE = ToolSchema("free", "Takes anything.", {"type": "object", "properties": {"x": {}}})
LIMITED = ToolSchema(
    "limited",
    "Takes little.",
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 9},
            "unit": {"enum": ["m", "km"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["n"],
    },
)
TOOLS = {schema.name: schema for schema in (PythonTool.schema, JupyterTool.schema, FREE, LIMITED)}
PY = PythonTool.schema.name


def parse(text: str) -> tuple[ParsedCall, ...]:
    return parse_calls(text, TOOLS)


def block(content: str) -> str:
    return f"{OPEN}{content}{CLOSE}"


def call(name: object, arguments: object) -> str:
    return block(json.dumps({"name": name, "arguments": arguments}))


UNPARSABLE, UNKNOWN, BAD = ToolStatus.UNPARSABLE_CALL, ToolStatus.UNKNOWN_TOOL, ToolStatus.BAD_ARGUMENTS
GOOD_ARGUMENTS = '{"code": "1", "input": ""}'

MALFORMED = {
    "nothing in it": (block(""), UNPARSABLE, "Expecting value"),
    "only space": (block(" \n "), UNPARSABLE, "Expecting value"),
    "no JSON": (block("print(1)"), UNPARSABLE, "malformed"),
    "bare code in a fence": (block("```python\nprint(1)\n```"), UNPARSABLE, "malformed"),
    "JSON in a fence": (block(f'```json\n{{"name": "{PY}"}}\n```'), UNPARSABLE, "malformed"),
    "single quotes": (block("{'name': 'free', 'arguments': {}}"), UNPARSABLE, "double quotes"),
    "trailing comma": (block('{"name": "free", "arguments": {},}'), UNPARSABLE, "malformed"),
    "missing brace": (block('{"name": "free", "arguments": {}'), UNPARSABLE, "malformed"),
    "a brace too many": (block('{"name": "free", "arguments": {}}}'), UNPARSABLE, "text behind"),
    "raw newline in a string": (block('{"name": "free", "arguments": {"x": "a\nb"}}'), UNPARSABLE, "control character"),
    "unterminated string": (block('{"name": "free'), UNPARSABLE, "Unterminated string"),
    "bad escape": (block(r'{"name": "free", "arguments": {"x": "\d"}}'), UNPARSABLE, "escape"),
    "Python literals": (block('{"name": "free", "arguments": {"x": None}}'), UNPARSABLE, "malformed"),
    "NaN": (block('{"name": "free", "arguments": {"x": NaN}}'), UNPARSABLE, "NaN is not a JSON number"),
    "Infinity": (block('{"name": "free", "arguments": {"x": -Infinity}}'), UNPARSABLE, "-Infinity is not"),
    "beyond a float": (block('{"name": "free", "arguments": {"x": 1e999}}'), UNPARSABLE, "1e999 is too large"),
    "5000 digits": (block('{"name": "free", "arguments": {"x": %s}}' % ("7" * 5000)), UNPARSABLE, "too many digits"),
    "deep": (call("free", {"x": json.loads("[" * 40 + "]" * 40)}), UNPARSABLE, "nested deeper"),
    "absurdly deep": (block("[" * 100_000 + "]" * 100_000), UNPARSABLE, "nested deeper"),
    "the same field twice": (block('{"name": "free", "name": "free", "arguments": {}}'), UNPARSABLE, "stands twice"),
    "a list of calls": (block('[{"name": "free", "arguments": {}}]'), UNPARSABLE, "JSON array"),
    "a string": (block('"free"'), UNPARSABLE, "JSON string"),
    "two objects in one block": (
        block('{"name": "free", "arguments": {}}\n{"name": "free", "arguments": {}}'),
        UNPARSABLE,
        "tags of its own",
    ),
    "prose behind it": (block('{"name": "free", "arguments": {}} and so on'), UNPARSABLE, "text behind"),
    "no name": (block('{"arguments": {}}'), UNPARSABLE, "'name' is missing"),
    "no arguments": (block('{"name": "free"}'), UNPARSABLE, "'arguments' is missing"),
    "parameters for arguments": (block('{"name": "free", "parameters": {}}'), UNPARSABLE, "'arguments' is missing"),
    "a field too many": (block('{"name": "free", "arguments": {}, "id": 1}'), UNPARSABLE, "'id' is not part"),
    "a number for a name": (call(3, {}), UNPARSABLE, "name is not a string"),
    "an empty name": (call("", {}), UNPARSABLE, "name is not a string"),
    "never closed": (OPEN + '{"name": "free", "arguments": {}}', UNPARSABLE, "not closed"),
    "never closed and broken": (OPEN + '{"name": "free", ', UNPARSABLE, "not closed by </tool_call>, and"),
    "never opened": ('{"name": "free", "arguments": {}}' + CLOSE, UNPARSABLE, "without <tool_call> before it"),
    "misspelt name": (call("jupyter", {"code": "1"}), UNKNOWN, "Did you mean jupyter_code?"),
    "no such tool": (call("zzz", {}), UNKNOWN, "There is execute_python_code_with_standard_io, "),
    "unknown tool, odd arguments": (call("zzz", "x"), UNKNOWN, "no tool named 'zzz'"),
    "arguments as a string": (call(PY, GOOD_ARGUMENTS), BAD, "not a JSON string"),
    "arguments as a list": (call(PY, ["1"]), BAD, "not a JSON array"),
    "arguments null": (call(PY, None), BAD, "not a JSON null"),
    "argument missing": (call(PY, {"code": "1"}), BAD, "lacks 'input'"),
    "argument of the wrong type": (call(PY, {"code": 1, "input": ""}), BAD, "arguments.code must be of type string"),
    "a list of lines for code": (call(PY, {"code": ["1"], "input": ""}), BAD, "not array"),
    "unknown argument": (call(PY, {"code": "", "input": "", "x": 1}), BAD, "it may hold 'code', 'input'"),
    "a bool is no integer": (call("limited", {"n": True}), BAD, "must be of type integer, not boolean"),
    "too small": (call("limited", {"n": 0}), BAD, "at least 1"),
    "too large": (call("limited", {"n": 10}), BAD, "at most 9"),
    "not in the enumeration": (call("limited", {"n": 1, "unit": "mile"}), BAD, "one of 'm', 'km'"),
    "an item of the wrong type": (call("limited", {"n": 1, "tags": ["a", 2]}), BAD, "arguments.tags[1] must be"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_is_typed_and_says_what_to_change(kind: str) -> None:
    text, status, advice = MALFORMED[kind]
    (parsed,) = parse(f"I will call it.</reason>\n{text}")
    assert parsed.error is not None
    assert parsed.error.status is status
    assert advice in parsed.error.text
    assert parsed.error.text.startswith("The tool call was not run: ")
    assert len(parsed.error.text) < 500
    assert (parsed.call.name is None) == (status is UNPARSABLE)
    # Whatever a model wrote, its trace can be stored and read back.
    turn = Turn((1,), (), text, StopReason.END_OF_TURN, calls=(parsed.call,), results=(parsed.error,))
    assert decode(Turn, encode(turn)) == turn


def test_the_malformed_kinds_are_at_least_thirty() -> None:
    assert len({text for text, _, _ in MALFORMED.values()}) >= 30


def test_all_of_several_calls_are_found_in_order() -> None:
    text = f"{call('free', {'x': 1})} then {block('broken')} and\n{call('free', {'x': 2})}{call('nope', {})}"
    statuses = [parsed.error.status if parsed.error else None for parsed in parse(text)]
    assert statuses == [None, UNPARSABLE, None, UNKNOWN]
    assert [parsed.call.arguments for parsed in parse(text)] == [{"x": 1}, {}, {"x": 2}, {}]


def test_an_unclosed_call_does_not_hide_the_next() -> None:
    first, second = parse(OPEN + '{"name": "free", "arguments": {"x": ' + call("free", {"x": 2}))
    assert first.error is not None
    assert second.error is None
    assert second.call.arguments == {"x": 2}


def test_code_may_hold_the_tags_themselves() -> None:
    code = f"print('{OPEN}') # {CLOSE}\n"
    (parsed,) = parse(call(PY, {"code": code, "input": ""}))
    assert parsed.error is None
    assert parsed.call.arguments["code"] == code


def test_what_was_written_is_kept_as_it_was() -> None:
    content = '\n{"name":  "free",\n "arguments": {"x": "\\u00e9 \\ud83d"}}\n'
    (parsed,) = parse(block(content))
    assert parsed.error is None
    assert parsed.call.raw == content
    assert parsed.call.arguments == {"x": "é \ud83d"}


def test_text_without_calls_has_none() -> None:
    assert parse("<reason>The tool_call is <not> needed.</reason><answer>\\boxed{1}</answer>") == ()


def test_the_limit_of_nesting_is_exact() -> None:
    # The call, its arguments and the lists: as deep as is allowed, and one deeper.
    fits, too_deep = (json.loads("[" * depth + "]" * depth) for depth in (MAX_NESTING - 2, MAX_NESTING - 1))
    assert parse(call("free", {"x": fits}))[0].error is None
    assert parse(call("free", {"x": too_deep}))[0].error is not None


def test_a_call_longer_than_what_is_read_at_once_is_read_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*MALFORMED.values(), block(json.dumps({"name": PY, "arguments": {"code": "é'\"\\" * 99, "input": "0"}}))]
    contents = [text[0] if isinstance(text, tuple) else text for text in texts]
    whole = [parse(content) for content in contents]
    monkeypatch.setattr("rstar2.agent.parse.FIRST_WINDOW", 8)
    assert [parse(content) for content in contents] == whole
    assert whole[-1][0].error is None


def test_ten_thousand_broken_calls_take_no_time() -> None:
    assert len(parse((OPEN + '{"a ') * 10_000)) == 10_000
