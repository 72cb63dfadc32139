"""Builds the calls that an execution of the program makes, and reads the answers that it printed. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from rstar2.environments.code.compare import same_value
from rstar2.environments.code.task import CallTest
from rstar2.environments.code.values import decode, encode
from rstar2.sandbox import Execution

Call = Mapping[str, Any]
"""`id`, `step` (the statement of the tests that makes it), `kind` and `parts`, which are encoded values."""
Answers = dict[str, dict[str, Any]]
"""Answers by call id: a `value` and perhaps changed `arguments`; or what the call `raised`; or why it is `lost`."""


def call_job(path: tuple[str, ...], arguments: Sequence[Any]) -> list[Call]:
    """The calls of one test: call the function; or make the object, get its method, call it."""

    def call(number: int, kind: str, *parts: Any) -> Call:
        return {"id": str(number), "step": 0, "kind": kind, "parts": list(parts)}

    encoded, nothing = [encode(argument, _refuse) for argument in arguments], encode({}, _refuse)
    if len(path) == 1:
        return [call(0, "call", {"ref": f"name:{path[0]}"}, encoded, nothing)]
    owner, method = path
    return [
        call(0, "call", {"ref": f"name:{owner}"}, [], nothing),
        call(1, "get", {"ref": "0"}, method),
        call(2, "call", {"ref": "1"}, encoded, nothing),
    ]


def _refuse(value: object) -> NoReturn:
    raise AssertionError(f"JSON has no {type(value).__name__}")


def batches_of(calls: Sequence[Call]) -> list[list[Call]]:
    """Group the calls by execution: one for each statement of the tests. If a statement uses the result of another
    one's call, all calls are made in order in one execution, as objects may hold state."""
    steps = {call["id"]: call["step"] for call in calls}
    for call in calls:
        sources = (steps.get(reference.partition(".")[0]) for reference in _references(call["parts"]))
        if any(step not in (None, call["step"]) for step in sources):
            return [list(calls)]
    batches: dict[int, list[Call]] = {}
    for call in calls:
        batches.setdefault(call["step"], []).append(call)
    return list(batches.values())


def _references(document: Any) -> Iterator[str]:
    if isinstance(document, list):
        for item in document:
            yield from _references(item)
    elif isinstance(document, dict):
        for tag, content in document.items():
            yield from [content] if tag == "ref" else _references(content)


def read_answers(execution: Execution | None, calls: Iterable[Call]) -> Answers:
    """An answer for each call: the first that was printed, or the reason that there is none."""
    found: Answers = {}
    for line in execution.stdout.split("\n") if execution else ():
        if line.startswith('["'):
            try:
                name, answer = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict):
                found.setdefault(name, answer)
    lost = {"lost": why_ended(execution)}
    return {call["id"]: found.get(call["id"], lost) for call in calls}


def value_failure(answer: Mapping[str, Any], test: CallTest) -> str:
    """Why the answer differs from what the test expects; empty if it does not."""
    try:
        if "value" in answer:
            value = decode(answer["value"], lambda _reference: object(), makes_objects=False)
            is_same = same_value(value, test.expected) if test.is_json else value == test.expected
            return "" if is_same else "it returns something else"
        return str(answer["lost"]) if "lost" in answer else ": ".join(answer["raised"])
    except Exception as error:  # a forged answer may cause any error
        return f"the answer is no value: {error}"


def holds_made(answer: Mapping[str, Any]) -> bool:
    """Whether decoding the value may need a constructor, for which a program could choose costly arguments."""
    return '"make"' in json.dumps(answer.get("value"))


def why_ended(execution: Execution | None) -> str:
    if execution is None:
        return "not run, because the program ran out of time before"
    last_line = execution.stderr.strip().rpartition("\n")[2]
    return execution.message or last_line or f"the program ended without an answer ({execution.status})"
