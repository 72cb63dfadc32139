"""Sets by their source: files, the catalog and its folder, procedural tasks; benchmarks of other kinds."""

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.config import DataSet
from rstar2.data import (
    CATALOG,
    FunctionCallTask,
    InstructionTask,
    MultiTurnCallTask,
    SetKind,
    load_any_problems,
    load_benchmark,
    load_conversations,
    load_problems,
)
from rstar2.errors import UserError
from rstar2.extensions import BENCHMARKS

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RSTAR2_DATA", raising=False)
    return tmp_path


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def numbered(path: Path, num_rows: int) -> DataSet:
    write(path, *({"problem": f"What is {n}+1?", "answer": n + 1} for n in range(num_rows)))
    return DataSet(source=f"file:{path}")


def test_a_draw_is_the_seed_s_and_the_name_s(home: Path) -> None:
    spec = numbered(home / "set.jsonl", 50).model_copy(update={"num_problems": 10})
    drawn = load_problems("train", spec, seed=1)
    assert len(drawn) == 10
    assert drawn == load_problems("train", spec, seed=1)
    assert drawn != load_problems("train", spec, seed=2)
    assert drawn != load_problems("dev", spec, seed=1)


def test_without_a_number_all_rows_come_in_order(home: Path) -> None:
    problems = load_problems("train", numbered(home / "set.jsonl", 5), seed=0)
    assert [problem.answer for problem in problems] == ["1", "2", "3", "4", "5"]


def test_a_number_means_at_most(home: Path) -> None:
    spec = numbered(home / "set.jsonl", 3).model_copy(update={"num_problems": 4})
    assert [problem.answer for problem in load_problems("train", spec, seed=0)] == ["1", "2", "3"]
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    few = DataSet(source=f"file:{write(home / 'talk.jsonl', {'messages': talk})}", num_problems=4)
    assert len(load_conversations("format", few, seed=0)) == 1


def test_every_mistake_of_a_file_is_reported(home: Path) -> None:
    path = home / "set.jsonl"
    path.write_text(
        '{"id": "a", "problem": "p", "answer": 1}\n'
        "no json\n"
        '{"id": "b", "problem": "p"}\n'
        '{"id": "a", "problem": "q", "answer": 2}\n'
        "[1]\n"
    )
    with pytest.raises(UserError) as raised:
        load_problems("train", DataSet(source=f"file:{path}"), seed=0)
    heading, *lines = str(raised.value).splitlines()
    assert heading.endswith("has 4 mistakes:")
    said = (
        "line 2: not JSON",
        "line 3: no column for the answer",
        f"line 4: the id 'a' is also that of {path}, line 1",
    )
    for words, line in zip((*said, "line 5: expected an object"), lines, strict=True):
        assert words in line


def test_a_file_of_mistakes_is_cut_short(home: Path) -> None:
    path = write(home / "talk.jsonl", *({"messages": []} for _ in range(1000)))
    with pytest.raises(UserError) as raised:
        load_conversations("format", DataSet(source=f"file:{path}"), seed=0)
    lines = str(raised.value).splitlines()
    assert len(lines) < 30
    assert lines[-1].strip() == "data.format: 980 more mistakes, not listed"


def test_an_empty_set_is_a_mistake(home: Path) -> None:
    with pytest.raises(UserError, match="data set train is empty"):
        load_problems("train", numbered(home / "empty.jsonl", 0), seed=0)


def test_procedural_problems_and_conversations() -> None:
    spec = DataSet(source="procedural:gcd,lcm", num_problems=6)
    problems = load_problems("train", spec, seed=0)
    assert len(problems) == 6 and problems == load_problems("train", spec, seed=0)
    assert not {p.problem for p in problems} & {p.problem for p in load_problems("held_out", spec, seed=0)}
    talk = load_conversations("format", DataSet(source="procedural:tool_format", num_problems=3), seed=0)
    assert len(talk) == 3
    with pytest.raises(UserError, match=r"data\.train\.num_problems is needed: procedural:gcd can generate any number"):
        load_problems("train", DataSet(source="procedural:gcd"), seed=0)


def test_reasoning_gym_tasks_share_the_number_with_our_own() -> None:
    spec = DataSet(source="procedural:gcd,rg_lcm,rg_chain_sum", num_problems=8)
    problems = load_problems("train", spec, seed=0)
    sources = [problem.source for problem in problems]
    assert [sources.count(name) for name in dict.fromkeys(sources)] == [3, 3, 2]
    assert len({problem.id for problem in problems}) == len({problem.problem for problem in problems}) == 8
    assert problems == load_problems("train", spec, seed=0)
    assert problems[-1].problem != load_problems("train", spec, seed=1)[-1].problem


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("rg_no_such_task", "reasoning-gym has no task 'no_such_task'"),
        ("rg_graph_color", "only scored by reasoning-gym itself"),
        ("rg_countdown", "only scored by reasoning-gym itself"),
    ],
)
def test_reasoning_gym_tasks_without_a_comparable_gold_are_refused(task: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_problems("train", DataSet(source=f"procedural:{task}", num_problems=2), seed=0)


def test_every_benchmark_of_the_recipes_is_in_the_catalog() -> None:
    assert {name for name, entry in CATALOG.items() if entry.kind is SetKind.BENCHMARK} == set(BENCHMARKS)


def test_a_set_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match=r"run `rstar2 data get aime24`, or put aime24\.jsonl into a folder"):
        load_benchmark("aime24")
    with pytest.raises(UserError, match="accept its terms on the hub and set HF_TOKEN"):
        load_benchmark("gpqa_diamond")
    with pytest.raises(UserError, match="did you mean 'aime24'"):
        load_benchmark("aime2024")
    with pytest.raises(UserError, match="training set, not a benchmark"):
        load_benchmark("gsm8k_train")


def test_a_folder_serves_at_any_depth(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "data" / "deep" / "er" / "aime24.jsonl", {"id": "1", "problem": "p", "answer": "204"})
    assert load_benchmark("aime24", home / "data")[0].answer == "204"
    monkeypatch.setenv("RSTAR2_DATA", str(home / "data"))
    assert load_problems("x", DataSet(source="catalog:aime24"), seed=0)[0].answer == "204"
    write(home / "data" / "aime24.json", {"id": "1", "problem": "p", "answer": "204"})
    with pytest.raises(UserError, match="keep one of them"):
        load_benchmark("aime24")
    monkeypatch.setenv("RSTAR2_DATA", str(home / "none"))
    with pytest.raises(UserError, match="RSTAR2_DATA: there is no folder"):
        load_benchmark("aime24")


def test_problems_and_conversations_are_not_mixed_up() -> None:
    with pytest.raises(UserError, match="holds conversations"):
        load_problems("x", DataSet(source="catalog:sft_mix"), seed=0)
    with pytest.raises(UserError, match="holds problems"):
        load_conversations("x", DataSet(source="catalog:gsm8k"), seed=0)
    with pytest.raises(UserError, match=r"put nonreasoning_sft_train\.jsonl into a folder"):
        load_conversations("x", DataSet(source="catalog:sft_mix"), seed=0)


def test_a_published_training_set_may_have_rows_without_a_gold(home: Path) -> None:
    rows = [
        {"problem": "a", "solution": r"So \boxed{\frac{1}{2}}."},
        {"problem": "b", "solution": r"So it is $\boxed 9$."},
        {"problem": "c", "solution": "no conclusion\n" * 20},
        {"problem": "d", "answer": ""},
    ]
    write(home / "data" / "math_train.jsonl", *rows)
    problems = load_any_problems("math_train", home / "data")
    assert [problem.answer for problem in problems] == [r"\frac{1}{2}", "9"]


def test_choices_have_an_order_of_their_own(home: Path) -> None:
    rows = [
        {
            "Record ID": f"rec{n}",
            "Question": "Which?",
            "Correct Answer": "yes",
            **{f"Incorrect Answer {k}": f"no{k}" for k in (1, 2, 3)},
        }
        for n in range(20)
    ]
    write(home / "data" / "gpqa_diamond.jsonl", *rows)
    problems = load_benchmark("gpqa_diamond", home / "data")
    assert all(f"{problem.answer}) yes" in problem.problem for problem in problems)
    assert len({problem.answer for problem in problems}) == 4
    assert problems == load_benchmark("gpqa_diamond", home / "data")


def test_ifeval_keeps_its_checks(home: Path) -> None:
    row = {
        "key": 1000,
        "prompt": "Write.",
        "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
        "kwargs": [{"num_words": None}, {"num_words": 300, "relation": "at least", "other": None}],
    }
    write(home / "data" / "ifeval.jsonl", row)
    (problem,) = load_benchmark("ifeval", home / "data")
    assert problem.answer == ""
    assert InstructionTask.of(problem) == InstructionTask(
        ("punctuation:no_comma", "length_constraints:number_words"), ({}, {"num_words": 300, "relation": "at least"})
    )
    write(home / "data" / "ifeval.jsonl", {**row, "kwargs": [{}]})
    with pytest.raises(UserError, match="lists of the same length"):
        load_benchmark("ifeval", home / "data")


def test_bfcl_joins_its_answers_and_leaves_out_several_turns(home: Path) -> None:
    question = [[{"role": "system", "content": "s"}, {"role": "user", "content": "area?"}]]
    functions = [{"name": "area"}, {"name": "volume"}]
    gold = [{"area": {"base": [10], "unit": ["cm", ""]}}]
    rows = [
        {"id": "multiple_0", "question": question, "function": functions},
        {"id": "multiple_0", "ground_truth": gold},
        {"id": "live_irrelevance_3-0-1", "question": question, "function": functions},
        {"id": "multi_turn_base_0", "question": question * 2, "ground_truth": [["cd()"]]},
    ]
    write(home / "data" / "bfcl.jsonl", *rows)
    first, second = load_benchmark("bfcl", home / "data")
    task = FunctionCallTask.of(first)
    assert (task.category, task.ground_truth, task.unknown_names) == ("multiple", tuple(gold), ())
    assert (first.problem, json.loads(first.answer)) == ("area?", gold)
    assert (FunctionCallTask.of(second).category, second.answer) == ("live_irrelevance", "")
    write(home / "data" / "bfcl.jsonl", rows[0])
    with pytest.raises(UserError, match="no ground_truth for multiple_0"):
        load_benchmark("bfcl", home / "data")


def test_bfcl_multi_turn_keeps_the_order_of_the_services_state(home: Path) -> None:
    row = {
        "id": "bfcl3-multi_turn_miss_func_7",
        "question": [[{"role": "user", "content": "sort it"}], []],
        "initial_config": {"GorillaFileSystem": {"root": {"b.txt": {}, "a.txt": {}}}},
        "involved_classes": ["GorillaFileSystem"],
        "missed_function": {"1": ["sort"]},
    }
    gold = {"id": row["id"], "ground_truth": [[], ["sort('b.txt')"]]}
    other = {"id": "simple_0", "question": [[{"role": "user", "content": "?"}]], "function": []}
    write(home / "data" / "bfcl_multi_turn.jsonl", row, gold, other)
    (problem,) = load_benchmark("bfcl_multi_turn", home / "data")
    task = MultiTurnCallTask.of(problem)
    assert (problem.id, problem.problem, task.id) == (row["id"], "sort it", "multi_turn_miss_func_7")
    assert (task.category, task.turns, task.services) == (
        "multi_turn_miss_func",
        ("sort it", ""),
        ("GorillaFileSystem",),
    )
    assert list(task.initial_config["GorillaFileSystem"]["root"]) == ["b.txt", "a.txt"]
    assert (task.missed_functions, task.ground_truth) == ({1: ("sort",)}, ((), ("sort('b.txt')",)))
    write(home / "data" / "bfcl_multi_turn.jsonl", row)
    with pytest.raises(UserError, match="no ground_truth for bfcl3-multi_turn_miss_func_7"):
        load_benchmark("bfcl_multi_turn", home / "data")


def test_arena_hard_in_both_of_its_forms(home: Path) -> None:
    write(
        home / "data" / "arena_hard.jsonl",
        {"question_id": "a", "cluster": "c", "turns": [{"content": "write"}]},
        {"uid": "b", "category": "hard", "prompt": "draw"},
    )
    problems = load_benchmark("arena_hard", home / "data")
    assert [(p.id, p.problem, p.answer) for p in problems] == [("a", "write", ""), ("b", "draw", "")]
