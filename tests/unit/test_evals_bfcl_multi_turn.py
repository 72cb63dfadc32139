"""BFCL's conversations without its services: how calls are told apart by turn, and what is told to whom lacks them."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.data import MultiTurnCallTask
from rstar2.errors import UserError
from rstar2.evals import EvalPlan
from rstar2.evals.bfcl import multi_turn, services
from rstar2.evals.bfcl.multi_turn import MORE_FUNCTIONS, calls_by_turn, first_messages, multi_turn_judge, said_in_turn
from rstar2.evals.bfcl.services import NOT_RUN, source_of
from rstar2.records import Problem, StopReason, ToolCall, ToolResult, ToolStatus, Turn

pytestmark = pytest.mark.unit

FUNCTIONS = [
    {"name": name, "description": f"{name}.", "parameters": {"type": "dict", "properties": {}}}
    for name in ("ls", "cd", "sort")
]
TASK = MultiTurnCallTask(
    "multi_turn_miss_func_0", ("List.", "Sort.", ""), ("GorillaFileSystem",), {}, {2: ("sort",)}, ((), (), ())
)


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    def functions_of(_: MultiTurnCallTask) -> list[dict[str, Any]]:
        return FUNCTIONS

    monkeypatch.setattr(services, "functions_of", functions_of)
    monkeypatch.setattr(multi_turn, "functions_of", functions_of)


def turn_of(*calls: tuple[str, ToolStatus]) -> Turn:
    return Turn(
        (1,),
        (),
        "",
        StopReason.END_OF_TURN,
        calls=tuple(ToolCall("", name, {"a": "it's"}) for name, _ in calls),
        results=tuple(ToolResult(status, "") for _, status in calls),
    )


def test_a_function_comes_to_light_in_its_turn_and_not_before() -> None:
    system, user = first_messages(Problem("p", "", "", metadata=TASK.metadata))
    assert '"name": "cd"' in system["content"]
    assert '"name": "sort"' not in system["content"]
    assert user == {"role": "user", "content": "List."}
    assert said_in_turn(TASK, 1) == "Sort."
    function, more = said_in_turn(TASK, 2).split("\n")
    assert '"name": "sort"' in function
    assert more == MORE_FUNCTIONS


def test_what_makes_no_call_ends_a_turn_of_the_users() -> None:
    ls, silence = turn_of(("ls", ToolStatus.OK)), turn_of()
    both = turn_of(("ls", ToolStatus.TIMED_OUT), ("cd", ToolStatus.RAISED))
    listed, changed = 'ls(a="it\'s")', 'cd(a="it\'s")'
    turns = calls_by_turn(TASK, [ls, ls, silence, silence, both, silence])
    assert turns == [[[listed], [listed]], [], [[NOT_RUN, changed]]]
    assert calls_by_turn(TASK, [silence, ls]) == [[], [[listed]]], "cut off in its last turn"


@pytest.mark.parametrize(
    ("name", "arguments", "source"),
    [
        ("cd", {"folder": "a'b", "n": [1, None, True]}, 'cd(folder="a\'b", n=[1, None, True])'),
        ("exit", {}, None),
        ("os.system", {"command": "ls"}, None),
        ("cd", {"folder=1) or exit(": 1}, None),
        ("cd", {"class": 1}, None),
    ],
)
def test_only_plain_calls_of_known_functions_become_source_text(
    name: str, arguments: dict[str, Any], source: str | None
) -> None:
    assert source_of(name, arguments, frozenset({"cd", "ls"})) == source


def test_a_conversation_whose_gold_has_other_turns_is_left_out_and_counted(tmp_path: Path) -> None:
    ask = [{"role": "user", "content": "List."}]
    rows = [
        {"id": f"multi_turn_base_{n}", "question": [ask], "initial_config": {"x": {}}, "involved_classes": ["MathAPI"]}
        | {"ground_truth": [["ls()"]] * n}
        for n in (1, 2)
    ]
    (tmp_path / "bfcl_v3.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = EvalPlan(("bfcl_multi_turn",), data_dir=str(tmp_path))
    (benchmark,) = plan.load()
    assert ([problem.id for problem in benchmark.problems], benchmark.num_left_out) == (["multi_turn_base_1"], 1)
    assert plan.deviations([benchmark])[-1] == "1 problems of bfcl_multi_turn left out, whose gold cannot be met"


def test_without_the_services_the_user_is_told_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match="pip install --no-deps bfcl-eval"):
        multi_turn_judge(None)  # type: ignore[arg-type]
