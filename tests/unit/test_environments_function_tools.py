"""Functions as tools: schemas from type hints and docstrings, results from what they return or raise."""

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from rstar2.environments.function_tools import MAX_RESULT_CHARS, FunctionTool, read_signature
from rstar2.environments.user_code import Caller
from rstar2.errors import EnvironmentCodeError, UserError
from rstar2.records import ToolResult, ToolStatus


@dataclass
class Point:
    x: int
    y: int = 0


class Box(BaseModel):
    corner: Point
    name: str | None = None


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def tool(function: Callable[..., Any]) -> FunctionTool:
    return FunctionTool(function, read_signature(function), Caller(30.0, stops=False))


def draw(
    box: Box,
    colour: Colour,
    size: Annotated[int, Field(ge=1)] = 1,
    words: list[str] | None = None,
    mode: Literal["fill", "line"] = "fill",
    limit: Optional[int] = None,  # noqa: UP045
) -> str:
    """Draws a box.

    It is drawn at once: nothing waits.

    Args:
        box (Box): The box
            to draw.
        colour: Its colour: red or blue.
        words: What is
          written on it.

    Returns:
        What was drawn.
    """
    return f"{box.corner.x} {colour.name} {size} {words} {mode} {limit}"


async def test_every_type_that_pydantic_knows() -> None:
    drawing = tool(draw)
    assert drawing.schema.name == "draw"
    assert drawing.schema.description == "Draws a box.\n\nIt is drawn at once: nothing waits."
    parameters = drawing.schema.parameters
    assert parameters["required"] == ["box", "colour"]
    properties = parameters["properties"]
    assert properties["box"] == {"$ref": "#/$defs/Box", "description": "The box to draw."}
    assert properties["colour"]["description"] == "Its colour: red or blue."
    assert properties["words"]["description"] == "What is written on it."
    assert properties["size"] == {"type": "integer", "minimum": 1, "default": 1}
    assert properties["mode"] == {"type": "string", "enum": ["fill", "line"], "default": "fill"}
    assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    result = await drawing.call({"box": {"corner": {"x": 3}}, "colour": "blue", "words": ["a"]})
    assert result == ToolResult(ToolStatus.OK, "3 BLUE 1 ['a'] fill None")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"box": {"corner": {"x": "?"}}, "colour": "red"}, r"box\.corner\.x: Input should be a valid integer"),
        ({"colour": "green"}, "colour: Input should be 'red' or 'blue'"),
        ({"size": 0}, "size: Input should be greater than or equal to 1"),
        ({"width": 0}, "there is no parameter 'width'; there is 'box', 'colour'"),
    ],
)
async def test_what_pydantic_refuses_is_a_bad_argument(arguments: dict[str, Any], message: str) -> None:
    result = await tool(draw).call(arguments)
    assert result.status is ToolStatus.BAD_ARGUMENTS
    assert re.search(message, result.text)


def _numpy(a: int, b: str = "") -> None:
    """Do it.

    Parameters
    ----------
    a : int
        The a.
    b : str, optional
        The b.

    Returns
    -------
    None
    """


def _sphinx(a: int, b: str = "") -> None:
    """Do it.

    :param a: The a.
    :param str b: The b.
    :returns: Nothing.
    """


def _google(a: int, b: str = "") -> None:
    """
    Do it.
    Args:
      a (int): The a.

      b (str, optional): The
        b.
    Raises:
        ValueError: never
    """


def _not_indented(a: int, b: str = "") -> None:
    """Do it.

    Args:
    a: The a.
    b: The b.
    """


@pytest.mark.parametrize("function", [_numpy, _sphinx, _google, _not_indented])
def test_docstrings_of_every_style(function: Callable[..., Any]) -> None:
    schema = read_signature(function).schema
    assert schema.description.startswith("Do it.")
    described = {name: parameter["description"] for name, parameter in schema.parameters["properties"].items()}
    assert described == {"a": "The a.", "b": "The b."}


def test_choices_as_transformers_reads_them() -> None:
    def drink(beverage: str, size: str) -> None:
        """Drinks.

        Args:
            beverage: What to drink (choices: ["tea", "coffee"])
            size: How much (choices: of any kind)
        """

    properties = read_signature(drink).schema.parameters["properties"]
    assert properties["beverage"] == {"type": "string", "description": "What to drink", "enum": ["tea", "coffee"]}
    assert properties["size"]["description"] == "How much (choices: of any kind)"


def test_transformers_reads_the_same_of_what_it_reads() -> None:
    pytest.importorskip("torch")
    from transformers.utils import get_json_schema

    def look(place: str, depth: int, names: list[str], exact: bool = False) -> str:
        """
        Looks at a place.

        And around it.

        Args:
            place: Where to look, such as "north".
            depth: How far,
                in steps.
            names: What to look for.
            exact: Whether names must match.

        Returns:
            What is there.
        """
        return place + str(depth) + str(names) + str(exact)

    theirs = get_json_schema(look)["function"]
    theirs.pop("return")
    theirs["parameters"]["properties"]["exact"]["default"] = False
    assert read_signature(look).schema.as_function()["function"] == theirs


def _no_docstring(a: int) -> None: ...


def _no_hint(a) -> None:  # type: ignore[no-untyped-def]
    """Do it."""


def _unknown_hint(a: "NoSuchType") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do it."""


def _no_json(a: Callable[[], int]) -> None:
    """Do it."""


def _not_of_pydantic(a: ToolStatus | FunctionTool | type(print)) -> None:  # type: ignore[valid-type]
    """Do it."""


def _many(*a: int) -> None:
    """Do it."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_no_docstring, "tool _no_docstring has no docstring: say what it does"),
        (_no_hint, "parameter a has no type hint: write a: str"),
        (_unknown_hint, "a type hint cannot be read: NameError: name 'NoSuchType'"),
        (_no_json, "have no JSON Schema|cannot write"),
        (_not_of_pydantic, "tool _not_of_pydantic: parameter a: "),
        (_many, r"\*a: int must be a parameter with a name"),
    ],
)
def test_what_a_function_lacks(function: Callable[..., Any], message: str) -> None:
    line = function.__code__.co_firstlineno
    with pytest.raises(UserError, match=rf"test_environments_function_tools.py, line {line}: .*({message})"):
        read_signature(function)


async def test_what_a_function_returns() -> None:
    def answer(what: Any) -> Any:
        """Answers."""
        return values[what]

    values: dict[str, Any] = {
        "text": "as it is",
        "none": None,
        "number": 3,
        "truth": True,
        "object": {"point": Point(1), "set": {1}, "nan": float("nan")},
        "cycle": [],
        "own": object,
        "result": ToolResult(ToolStatus.TIMED_OUT, "mine"),
    }
    values["cycle"].append(values["cycle"])
    texts = {name: await tool(answer).call({"what": name}) for name in values}
    assert texts["text"] == ToolResult(ToolStatus.OK, "as it is")
    assert texts["none"].status is ToolStatus.NO_OUTPUT
    assert texts["number"].text == "3"
    assert texts["truth"].text == "true"
    assert texts["object"].text == '{"point":{"x":1,"y":0},"set":[1],"nan":NaN}'
    assert texts["cycle"].text == "[[...]]"
    assert texts["own"].text == "\"<class 'object'>\""
    assert texts["result"] is values["result"]


async def test_a_result_of_100_megabytes_is_cut_and_has_its_own_status() -> None:
    async def write() -> str:
        """Writes."""
        return "x" * 100_000_000

    result = await tool(write).call({})
    assert result.status is ToolStatus.OUTPUT_TOO_LONG
    assert len(result.text) == MAX_RESULT_CHARS
    assert result.num_cut_chars == 100_000_000 - MAX_RESULT_CHARS


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_value_error_is_for_the_model_and_any_other_is_not(is_async: bool) -> None:
    class RefusalError(ValueError):
        pass

    errors = [ValueError("no such page"), RefusalError(), KeyError("page"), TypeError("x"), UserError("stop")]

    def act(number: int) -> None:
        """Acts."""
        raise errors[number]

    async def act_later(number: int) -> None:
        """Acts."""
        raise errors[number]

    acting = tool(act_later if is_async else act)
    assert await acting.call({"number": 0}) == ToolResult(ToolStatus.RAISED, "no such page")
    assert await acting.call({"number": 1}) == ToolResult(ToolStatus.RAISED, "RefusalError")
    for number in (2, 3):
        with pytest.raises(EnvironmentCodeError, match=r"tool act.*: .*function_tools.py, line \d+: (Key|Type)Error"):
            await acting.call({"number": number})
    with pytest.raises(UserError, match=r"^stop$"):
        await acting.call({"number": 4})
