"""The golden file of BFCL's conversations: `bfcl_multi_turn.py DATA`, in an environment with bfcl-eval 2025.7.8.

Scripts of what a model says are made from the ground truths and changed: other values, calls lost, added, repeated,
swapped or of functions that do not exist, everything in one step or each call in its own, calls where there should be
none, no end. The package's own runner plays each with its services, and its own evaluation decides.
"""

import ast
import contextlib
import copy
import io
import json
import random
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bfcl_eval
from bfcl_eval.eval_checker.eval_runner import multi_turn_runner
from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from overrides import override

from golden import read_rows, write_golden

NUM_PER_CATEGORY = 12
DOCUMENTS = Path(bfcl_eval.__path__[0]) / "data" / "multi_turn_func_doc"
FILES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}
Steps = list[list[dict[str, Any]]]
"""What is called in each step of one turn."""


class Scripted(QwenFCHandler):
    """Says one text after the other, and then nothing that calls."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.model_name = self.model_name_underline_replaced = name
        self.is_fc_model = False
        self.texts = iter(texts)

    @override
    def _query_prompting(self, inference_data: dict):  # noqa: ARG002
        text = next(self.texts, "Done.")
        usage = SimpleNamespace(prompt_tokens=0, completion_tokens=0)
        return SimpleNamespace(choices=[SimpleNamespace(text=text)], usage=usage), 0.0


def functions_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    lines = [(DOCUMENTS / f"{FILES[name]}.json").read_text().splitlines() for name in row["involved_classes"]]
    return [json.loads(line) for some in lines for line in some if line.strip()]


def call_of(source: str, functions: list[dict[str, Any]]) -> dict[str, Any]:
    """The gold's source text as a call with named arguments."""
    node = ast.parse(source, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    name = node.func.id
    function = next(function for function in functions if function["name"] == name)
    names = list(function["parameters"]["properties"])
    arguments = {names[index]: ast.literal_eval(value) for index, value in enumerate(node.args)}
    arguments |= {str(item.arg): ast.literal_eval(item.value) for item in node.keywords}
    return {"name": name, "arguments": arguments}


def some_step(turns: list[Steps], draw: random.Random) -> list[dict[str, Any]]:
    return draw.choice([step for steps in turns for step in steps if step])


def other_value(turns: list[Steps], draw: random.Random) -> None:
    call = draw.choice(some_step(turns, draw))
    if call["arguments"]:
        key = draw.choice(sorted(call["arguments"]))
        value = call["arguments"][key]
        options = [f"{value}x", None, 7, [value]] if isinstance(value, str) else [str(value), -1, None]
        call["arguments"][key] = draw.choice(options)


def lose_call(turns: list[Steps], draw: random.Random) -> None:
    step = some_step(turns, draw)
    step.pop(draw.randrange(len(step)))


def repeat_call(turns: list[Steps], draw: random.Random) -> None:
    step = some_step(turns, draw)
    step.append(copy.deepcopy(draw.choice(step)))


def unknown_call(turns: list[Steps], draw: random.Random) -> None:
    strange = [("no_such_function", {"a": 1}), ("print", {"x": 1}), ("os.system", {}), ("exit", {}), ("cd", {"a-b": 1})]
    name, arguments = draw.choice(strange)
    draw.choice(turns).append([{"name": name, "arguments": arguments}])


def harmless_call(turns: list[Steps], draw: random.Random) -> None:
    calls = [("pwd", {}), ("ls", {}), ("get_current_time", {}), ("mean", {"numbers": [1, 2]}), ("list_users", {})]
    name, arguments = draw.choice(calls)
    draw.choice(turns).append([{"name": name, "arguments": arguments}])


def swap_turns(turns: list[Steps], draw: random.Random) -> None:
    first, second = draw.sample(range(len(turns)), 2)
    turns[first], turns[second] = turns[second], turns[first]


def reverse_calls(turns: list[Steps], draw: random.Random) -> None:
    some_step(turns, draw).reverse()


def empty_turn(turns: list[Steps], draw: random.Random) -> None:
    turns[draw.randrange(len(turns))].clear()


def no_end(turns: list[Steps], draw: random.Random) -> None:
    steps = draw.choice([steps for steps in turns if steps])
    steps += [copy.deepcopy(steps[-1]) for _ in range(draw.choice([19, 20, 21, 25]))]


CHANGES: list[Callable[[list[Steps], random.Random], None] | None] = [
    None,
    None,
    other_value,
    other_value,
    lose_call,
    repeat_call,
    unknown_call,
    harmless_call,
    swap_turns,
    reverse_calls,
    empty_turn,
    no_end,
]


def texts_of(turns: list[Steps], draw: random.Random) -> list[str]:
    texts = []
    for steps in turns:
        for step in steps:
            calls = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in step]
            if calls:
                opening = draw.choice(["", "", "I look.\n", "Hm.\n</think>\n\n"])
                texts.append(opening + "\n".join(calls))
        texts.append(draw.choice(["Done.", "I cannot do that yet.", "<tool_call>\noops\n</tool_call>"]))
    return texts


def verdict(row: dict[str, Any], texts: list[str], name: str) -> bool:
    """The package's own runner and evaluation. Its services live in a module, by the model's name."""
    entry = {key: copy.deepcopy(row[key]) for key in ("question", "initial_config", "involved_classes")}
    entry["id"] = row["id"].removeprefix("bfcl3-")
    entry["function"] = functions_of(row)
    missed = {function["name"]: function for function in entry["function"]}
    entry["missed_function"] = {
        turn: [missed[function] for function in names] for turn, names in (row.get("missed_function") or {}).items()
    }
    handler = Scripted(name, texts)
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        result, _ = handler.inference_multi_turn_prompting(entry, False, True)
        results = [{"id": entry["id"], "result": result}]
        golds = [{"id": entry["id"], "ground_truth": row["ground_truth"]}]
        scored = multi_turn_runner(handler, results, [entry], golds, name, row["category"], Path(folder))
    return bool(scored[0])


def main() -> None:
    per_category = int(sys.argv[2]) if len(sys.argv) > 2 else NUM_PER_CATEGORY
    by_category: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(Path(sys.argv[1])):
        if row["category"].startswith("multi_turn"):
            by_category.setdefault(row["category"], []).append(row)
    tasks, responses, num_unusable = [], [], 0
    columns = ("id", "initial_config", "involved_classes", "missed_function", "ground_truth")
    for category, rows in by_category.items():
        for row in random.Random(category).sample(rows, min(per_category, len(rows))):
            functions = functions_of(row)
            try:
                golds = [[call_of(source, functions) for source in turn] for turn in row["ground_truth"]]
            except (ValueError, AssertionError, StopIteration, IndexError):
                num_unusable += 1
                continue
            tasks.append({key: row.get(key) for key in columns} | {"num_turns": len(row["question"])})
            for number, change in enumerate(CHANGES):
                draw = random.Random(f"{row['id']}/{number}")
                is_one_step = draw.random() < 0.5
                turns = [
                    copy.deepcopy([[*calls]] if is_one_step else [[call] for call in calls]) if calls else []
                    for calls in golds
                ]
                if change is not None:
                    change(turns, draw)
                texts = texts_of(turns, draw)
                is_right = verdict(row, texts, f"m{len(responses)}")
                responses.append([len(tasks) - 1, int(is_right), texts])
    official = {"package": "bfcl-eval", "version": version("bfcl-eval")}
    print(f"{len(tasks)} problems ({num_unusable} left out), {len(responses)} conversations")
    print(f"{sum(is_right for _, is_right, _ in responses)} right")
    name = "bfcl_multi_turn" if per_category == NUM_PER_CATEGORY else "bfcl_multi_turn_all"
    write_golden(name, official, {"tasks": tasks, "responses": responses})


if __name__ == "__main__":
    main()
