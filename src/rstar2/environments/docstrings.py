"""Reads what a docstring says about a function and its parameters: Google, numpy and Sphinx style."""

import json
import re
from dataclasses import dataclass

import docstring_parser

_CHOICES = re.compile(r"\(choices:\s*(\[.*?\])\s*\)\s*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParameterDoc:
    description: str
    choices: tuple[str, ...] = ()
    """The values of a `(choices: ["tea", "coffee"])` at the end of the description, as transformers reads it."""


@dataclass(frozen=True, slots=True)
class FunctionDoc:
    description: str
    """The text before the sections."""
    parameters: dict[str, ParameterDoc]


def read_docstring(docstring: str, parameters: list[str]) -> FunctionDoc:
    """Parse a docstring; parameters that it does not describe are left out."""
    try:
        parsed = docstring_parser.parse(docstring)
        description = parsed.description or ""
        described = {param.arg_name: param.description or "" for param in parsed.params}
    except docstring_parser.ParseError:
        description, described = docstring, {}
    texts = {name: described.get(name) or _line_of(name, docstring) for name in parameters}
    return FunctionDoc(description.strip(), {name: _parameter(text) for name, text in texts.items() if text})


def _line_of(name: str, docstring: str) -> str:
    """`name: text` anywhere in the docstring, for sections in no known style."""
    found = re.search(rf"^\s*{re.escape(name)}\s*(?:\([^)]*\))?:[ \t]*(\S.*)$", docstring, re.MULTILINE)
    return found[1] if found else ""


def _parameter(text: str) -> ParameterDoc:
    text = " ".join(text.split())
    found = _CHOICES.search(text)
    if found is None:
        return ParameterDoc(text)
    try:
        choices = tuple(json.loads(found[1]))
    except ValueError:
        return ParameterDoc(text)
    return ParameterDoc(text[: found.start()].strip(), choices)
