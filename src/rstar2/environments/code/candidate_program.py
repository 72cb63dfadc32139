"""Runs the judged program and the calls that its tests make. It runs in the sandbox: `CodeJudge` sends its source text
after that of `values`.

stdin is a JSON object with the `sources` to run and the `calls`, which hold inputs but no expected values. stdout has
one JSON line for each finished call: its id and its answer. The program shares this process and may forge such lines:
an answer is only a value for the tests to check.
"""

import builtins
import itertools
import json
import sys
import types
from collections.abc import Callable
from typing import Any

if __name__ != "__main__":  # In the sandbox both are one file.
    from rstar2.environments.code.values import decode, encode

MAX_ITEMS = 10_000
"""The maximum number of items read from an iterator, which may be endless."""

QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "iter": lambda value: list(itertools.islice(value, MAX_ITEMS)),
    "next": next,
    "bool": bool,
    "len": len,
    "str": str,
    "repr": repr,
    "int": int,
    "float": float,
    "abs": abs,
}


def answer(call: dict[str, Any], objects: dict[str, Any], program: dict[str, Any]) -> dict[str, Any]:
    """Make one call. `objects` gets its result, and every object that its answer refers to."""
    num_references = 0

    def refer(value: Any) -> dict[str, str]:
        nonlocal num_references
        reference = f"{call['id']}.{num_references}"
        num_references += 1
        objects[reference] = value
        return {"ref": reference}

    def resolve(reference: str) -> Any:
        where, _, name = reference.partition(":")
        if not name:
            return objects[where]
        if where == "builtin":
            return getattr(builtins, name)
        if name not in program:
            raise NameError(f"name {name!r} is not defined")
        return program[name]

    try:
        parts = [decode(part, resolve) for part in call["parts"]]
        value = objects[call["id"]] = make(call["kind"], *parts)
        found = {"value": encode(value, refer)}
        if call["kind"] == "call":
            after = [encode(part, refer) if isinstance(part, list | dict | set) else None for part in parts[1]]
            if any(now not in (None, before) for now, before in zip(after, call["parts"][1], strict=True)):
                found["arguments"] = after
    except Exception as error:
        kinds = (kind.__name__ for kind in type(error).__mro__)
        found = {"raised": [next(name for name in kinds if hasattr(builtins, name)), str(error)[:500]]}
    return found


def make(kind: str, target: Any, *parts: Any) -> Any:
    match kind:
        case "call":
            arguments, named = parts
            return target(*arguments, **named)
        case "get":
            return getattr(target, *parts)
        case "set":
            return setattr(target, *parts)
        case "item":
            return target[parts[0]]
        case "equal":
            return bool(target == parts[0])
    return QUESTIONS[kind](target)


def main() -> None:
    job = json.load(sys.stdin)
    program = types.ModuleType("program")
    sys.modules["program"] = program
    for source in job["sources"]:
        exec(compile(source, "<program>", "exec", dont_inherit=True), program.__dict__)
    objects: dict[str, Any] = {}
    for call in job["calls"]:
        line = json.dumps([call["id"], answer(call, objects, program.__dict__)])
        print("\n" + line, flush=True)  # the program may have printed half a line
