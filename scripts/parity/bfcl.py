"""The golden file of BFCL's single-turn categories: `bfcl.py DATA`, in an environment with bfcl-eval.

Right calls are made from the ground truths and changed in many ways: values of another type, arguments left out, added
or renamed, other functions, calls reordered, repeated or lost, source text in place of values. The responses go through
the package's decoder for Qwen's calls and through its checker.
"""

import copy
import json
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bfcl_eval.constants.enums import Language
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker
from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from bfcl_eval.utils import is_empty_output, is_function_calling_format_output

from golden import read_rows, write_golden

MODEL = "Qwen/Qwen3-0.6B-FC"
NUM_PER_CATEGORY, NUM_RESPONSES = 48, 8
WITHOUT_GOLD = ("irrelevance", "live_relevance", "live_irrelevance")
LANGUAGES = {"java": Language.JAVA, "javascript": Language.JAVASCRIPT}
Calls = list[dict[str, Any]]


def chosen(values: list[Any], draw: random.Random) -> Any:
    """One of the right values; the fields of a dictionary have lists of right values themselves."""
    value = draw.choice([value for value in values if value != ""] or [""])
    if isinstance(value, dict):
        return {key: chosen(inner, draw) for key, inner in value.items() if isinstance(inner, list)}
    if isinstance(value, list):
        return [{k: chosen(v, draw) for k, v in item.items()} if isinstance(item, dict) else item for item in value]
    return value


def right_calls(row: dict[str, Any], draw: random.Random) -> Calls:
    calls = []
    for right in row["ground_truth"]:
        ((name, arguments),) = right.items()
        is_alone = len(row["function"]) == 1
        given = {k: chosen(v, draw) for k, v in arguments.items() if "" not in v or draw.random() < 0.5}
        calls.append({"name": row["function"][0]["name"] if is_alone else name, "arguments": given})
    return calls


def java_text(value: Any, kind: str, draw: random.Random) -> Any:
    def literal(item: Any) -> str:
        return json.dumps(item) if isinstance(item, (str, bool)) else str(item)

    match value:
        case bool():
            return str(value).lower()
        case int() if kind == "long":
            return draw.choice([f"{value}L", f"{value}l", str(value)])
        case float() if kind == "float":
            return draw.choice([f"{value}f", f"{value}F", str(value)])
        case list():
            items = ", ".join(map(literal, value))
            adds = " ".join(f"add({literal(item)});" for item in value)
            lists = [f"new ArrayList<>(Arrays.asList({items}))", f"new ArrayList<String>() {{{{ {adds} }}}}"]
            arrays = [f"new String[]{{{items}}}", f"new int[] {{{items}}}"]
            both = {"ArrayList": lists * 3 + arrays, "Array": arrays * 3 + lists}[kind]
            return draw.choice([*both, json.dumps(value), "new ArrayList<>()"])
        case dict():
            puts = " ".join(f'put("{key}", {literal(item)});' for key, item in value.items())
            maps = [f"new HashMap<String, Object>() {{{{ {puts} }}}}", f"new HashMap<>(){{{{{puts}}}}}"]
            return draw.choice([*maps, *maps, json.dumps(value), "new HashMap<>()", f"new HashMap<>() {{ {puts} "])
    return str(value)


def js_text(value: Any, kind: str, draw: random.Random) -> Any:
    match value:
        case bool():
            return str(value).lower()
        case int() if kind == "Bigint":
            return draw.choice([f"{value}n", str(value)])
        case str() if kind == "String":
            return draw.choice([value, f'"{value}"', f"'{value}'"])
        case list():
            text = json.dumps(value)
            return draw.choice([text, text, text.replace('"', "'"), f"new Array({text[1:-1]})", text[:-1], f" {text} "])
        case dict():
            text = json.dumps(value)
            return draw.choice([text, text, text.replace('"', "'"), text.replace('"', ""), text[:-1]])
    return str(value)


def as_source(row: dict[str, Any], calls: Calls, draw: random.Random) -> None:
    """Java and JavaScript arguments are source text, most of the time."""
    write = {"java": java_text, "javascript": js_text}.get(row["category"])
    types = row["function"][0]["parameters"]["properties"]
    for call in calls if write else ():
        for key, value in call["arguments"].items():
            if draw.random() < 0.95:
                call["arguments"][key] = write(value, types.get(key, {}).get("type", "any"), draw)


def other_value(value: Any, draw: random.Random) -> Any:
    match value:
        case bool():
            return draw.choice([not value, int(value), str(value), str(value).lower(), None])
        case int():
            return draw.choice([value + 1, float(value), value + 0.5, str(value), -value, bool(value), [value]])
        case float():
            return draw.choice([int(value), value + 0.1, str(value), round(value), value * 1.0000001, None])
        case str():
            changed = [
                value.upper(),
                value.replace(" ", ""),
                f"{value}.",
                value.replace("-", "_"),
                f" {value} ",
                "",
                "?",
            ]
            return draw.choice([*changed, value[:-1], value.replace("'", '"'), [value], 7, None, f'"{value}"'])
        case list():
            changed = [value[::-1], value[:-1], [*value, *value[:1]], [], [str(item) for item in value], value[:1], ""]
            return draw.choice(
                [*changed, {}, json.dumps(value), [[*value]], [other_value(item, draw) for item in value]]
            )
        case dict():
            shorter = dict(list(value.items())[1:])
            changed = {key: other_value(item, draw) for key, item in value.items()}
            return draw.choice([shorter, changed, {**value, "extra": 1}, {}, json.dumps(value), [value], ""])
    return "?"


def change_value(calls: Calls, draw: random.Random, _: dict[str, Any]) -> None:
    call = draw.choice(calls)
    if call["arguments"]:
        key = draw.choice(sorted(call["arguments"]))
        call["arguments"][key] = other_value(call["arguments"][key], draw)


def drop_argument(calls: Calls, draw: random.Random, _: dict[str, Any]) -> None:
    call = draw.choice(calls)
    if call["arguments"]:
        del call["arguments"][draw.choice(sorted(call["arguments"]))]


def add_argument(calls: Calls, draw: random.Random, row: dict[str, Any]) -> None:
    known = sorted(row["function"][0]["parameters"]["properties"])
    draw.choice(calls)["arguments"][draw.choice([*known, "unknown"])] = draw.choice(["", 1, "x", None, []])


def rename_argument(calls: Calls, draw: random.Random, _: dict[str, Any]) -> None:
    call = draw.choice(calls)
    if call["arguments"]:
        key = draw.choice(sorted(call["arguments"]))
        call["arguments"][draw.choice([key.upper(), f"{key}_", key])] = call["arguments"].pop(key)


def rename_function(calls: Calls, draw: random.Random, row: dict[str, Any]) -> None:
    call = draw.choice(calls)
    names = [function["name"] for function in row["function"]]
    call["name"] = draw.choice([*names, call["name"].replace(".", "_"), call["name"].upper(), f"x.{call['name']}"])


def change_number(calls: Calls, draw: random.Random, _: dict[str, Any]) -> None:
    match draw.randrange(4):
        case 0:
            calls.append(copy.deepcopy(draw.choice(calls)))
        case 1:
            calls.pop(draw.randrange(len(calls)))
        case 2:
            calls[draw.randrange(len(calls))] = copy.deepcopy(draw.choice(calls))
        case 3:
            calls.clear()


def reorder(calls: Calls, draw: random.Random, _: dict[str, Any]) -> None:
    draw.shuffle(calls)
    for call in calls:
        call["arguments"] = dict(draw.sample(list(call["arguments"].items()), len(call["arguments"])))


CHANGES: list[Callable[[Calls, random.Random, dict[str, Any]], None]] = [
    change_value,
    change_value,
    change_value,
    drop_argument,
    add_argument,
    rename_argument,
    rename_function,
    change_number,
    reorder,
    reorder,
]


def written(calls: Calls, draw: random.Random) -> tuple[str, bool]:
    """The response, and whether the first of its calls is malformed."""
    texts = [f"<tool_call>\n{json.dumps(call, ensure_ascii=draw.random() < 0.5)}\n</tool_call>" for call in calls]
    is_damaged = bool(texts) and draw.random() < 0.05
    if is_damaged:
        texts[0] = draw.choice([texts[0].replace("}", "", 1), "<tool_call>\n[1, 2]\n</tool_call>", texts[0][:-12]])
    opening = draw.choice(["", "", "", "I call it now.\n", "Hm, well.\n</think>\n\n"])
    text = opening + "\n".join(texts) + draw.choice(["", "", "\nDone."])
    return text or "No function helps.", is_damaged


def response_of(row: dict[str, Any], attempt: int, draw: random.Random) -> tuple[str, bool]:
    if row["category"] in WITHOUT_GOLD:
        calls = [{"name": row["function"][0]["name"], "arguments": {}}] if row["function"] else []
        calls = calls * draw.choice([0, 0, 1, 1, 2])
    else:
        calls = right_calls(row, draw)
        as_source(row, calls, draw)
        for _ in range((0, 0, 1, 1, 1, 1, 2, 3)[attempt]):
            if calls:
                draw.choice(CHANGES)(calls, draw, row)
    return written(calls, draw)


def verdict(row: dict[str, Any], text: str, handler: QwenFCHandler) -> bool:
    category = row["category"]
    try:
        decoded = handler.decode_ast(text, None, has_tool_call_tag=False)
    except Exception:
        return "irrelevance" in category
    if category in WITHOUT_GOLD:
        return is_empty_output(decoded) == ("irrelevance" in category)
    if not is_function_calling_format_output(decoded):
        return False
    language = LANGUAGES.get(category, Language.PYTHON)
    checked = ast_checker(row["function"], decoded, row["ground_truth"], language, category, MODEL)
    return bool(checked["valid"])


def bare(schema: dict[str, Any]) -> dict[str, Any]:
    """What the checker looks at: no descriptions."""
    kept: dict[str, Any] = {key: schema[key] for key in ("type", "required") if key in schema}
    if isinstance(schema.get("items"), dict):
        kept["items"] = bare(schema["items"])
    if isinstance(schema.get("properties"), dict):
        kept["properties"] = {name: bare(inner) for name, inner in schema["properties"].items()}
    return kept


def main() -> None:
    per_category = int(sys.argv[2]) if len(sys.argv) > 2 else NUM_PER_CATEGORY
    handler = QwenFCHandler.__new__(QwenFCHandler)
    by_category: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(Path(sys.argv[1])):
        if not row["category"].startswith("multi_turn"):
            by_category.setdefault(row["category"], []).append(row)
    tasks, responses = [], []
    for category, rows in by_category.items():
        for row in random.Random(category).sample(rows, min(per_category, len(rows))):
            functions = [
                {"name": function["name"], "parameters": bare(function["parameters"])} for function in row["function"]
            ]
            if len(functions) > 4:
                named = {name for right in row["ground_truth"] or () for name in right}
                functions = [function for function in functions if function["name"] in named] or functions[:4]
            task = {"category": category, "function": functions, "ground_truth": row["ground_truth"] or []}
            tasks.append([category, functions, task["ground_truth"]])
            seen = set()
            for attempt in range(NUM_RESPONSES):
                text, is_damaged = response_of(task, attempt, random.Random(f"{row['id']}/{attempt}"))
                if text in seen:
                    continue
                seen.add(text)
                is_right = verdict(task, text, handler)
                responses.append([len(tasks) - 1, int(is_right), int(is_damaged), text])
    official = {"package": "bfcl-eval", "version": version("bfcl-eval")}
    print(f"{len(tasks)} problems, {len(responses)} responses, {sum(right for _, right, *_ in responses)} right")
    name = "bfcl" if per_category == NUM_PER_CATEGORY else "bfcl_all"
    write_golden(name, official, {"tasks": tasks, "responses": responses})


if __name__ == "__main__":
    main()
