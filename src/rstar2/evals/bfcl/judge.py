"""The messages of a BFCL problem to the model, and the judge of the calls that the model makes."""

import json
from collections.abc import Mapping
from typing import Any

from rstar2.agent.chat_template import with_tools
from rstar2.agent.parse import parse_calls
from rstar2.data import FunctionCallTask
from rstar2.engine.protocol import Message
from rstar2.environments import Judgement
from rstar2.evals.bfcl.match import Language, matches
from rstar2.records import Problem, ToolCall, Trace, Verdict
from rstar2.records.trace import after_thought
from rstar2.rollout.judge import Judge

_JSON_TYPES = {"dict": "object", "tuple": "array", "float": "number", "any": "string"}
_SYNTAXES = {Language.PYTHON: "Python 3", Language.JAVA: "Java 8 SDK", Language.JAVASCRIPT: "JavaScript"}


def asked_messages(problem: Problem) -> list[Message]:
    """The task's own messages, and its functions in the system turn as Qwen describes them."""
    task = FunctionCallTask.of(problem)
    messages: list[Message] = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in task.messages]
    language = Language.of(task.category)
    functions = [{"type": "function", "function": shown_function(function, language)} for function in task.functions]
    system_text = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
    system = with_tools(system_text, functions).strip()
    return [{"role": "system", "content": system}, *messages] if system else messages


def shown_function(function: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """A function as the benchmark states it for the language. Java and JavaScript arguments are asked for as source
    text."""
    schema = json_schema(function.get("parameters") or {})
    if language is not Language.PYTHON:
        written = (function.get("parameters") or {}).get("properties") or {}
        schema["properties"] = {name: _as_source_text(details, language) for name, details in written.items()}
    hint = f" Note that the provided function is in {_SYNTAXES[language]} syntax."
    return {**function, "description": function.get("description", "") + hint, "parameters": schema}


def _as_source_text(details: Mapping[str, Any], language: Language) -> dict[str, Any]:
    kind = details.get("type")
    if kind == "any":
        hint = f" This parameter can be of any type of {language.value} object in string representation."
    else:
        hint = f" This is {language.value} {kind} type parameter in string representation."
    if isinstance(details.get("items"), Mapping):
        hint += f" The list elements are of type {details['items']['type']}; they are not in string representation."
    if kind == "dict" and "properties" in details:
        fields = json.dumps(details["properties"])
        hint += f" The dictionary entries have the following schema; they are not in string representation. {fields}"
    kept = {name: value for name, value in details.items() if name not in ("items", "properties")}
    return {**kept, "type": "string", "description": details.get("description", "") + hint}


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with JSON Schema's names of types, which models know, instead of BFCL's Python names."""
    converted = dict(schema)
    if isinstance(schema.get("type"), str):
        converted["type"] = _JSON_TYPES.get(schema["type"], schema["type"])
    if isinstance(schema.get("properties"), Mapping):
        converted["properties"] = {name: json_schema(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), Mapping):
        converted["items"] = json_schema(schema["items"])
    return converted


def calls_in(text: str) -> list[ToolCall]:
    """The calls after the last thought that can be parsed; one that cannot is no call, as in BFCL."""
    parsed = (item.call for item in parse_calls(after_thought(text), {}))
    return [call for call in parsed if call.name is not None]


def call_judge() -> Judge:
    async def decide(problem: Problem, trace: Trace) -> Judgement:
        task = FunctionCallTask.of(problem)
        is_right = matches(task, calls_in(trace.response_text))
        verdict = Verdict.RIGHT if is_right else Verdict.WRONG
        return Judgement(verdict, details={task.category: float(is_right)})

    return Judge(decide, lambda problem: {FunctionCallTask.of(problem).category: 1.0})
