"""Rows of programming tasks: what the model is asked, what stays hidden, and whose mistake an odd row is."""

import base64
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from rstar2.environments.code.rows import MAX_TEST_BYTES, read_task
from rstar2.environments.code.task import Asserts, CallTest, CallTests, StdinTest
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

MBPP = {
    "text": "Write a function to find the similar elements.",
    "code": "def similar(a, b):\n    return tuple(set(a) & set(b))",
    "test_list": ["assert set(similar((1, 2), (2, 3))) == {2}", "assert similar((1,), (2,)) == ()"],
    "test_setup_code": "",
    "challenge_test_list": ["assert similar((7,), (7,)) == (7,)"],
}
HUMAN_EVAL = {
    "prompt": 'import math\n\ndef helper(x):\n    return x\n\ndef twice(x: int) -> int:\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(helper(4711)) == 9422\n",
    "entry_point": "twice",
}
CASES = [
    {"input": "1 2\n", "output": "3", "testtype": "stdin"},
    {"input": "5 6\n", "output": "11", "testtype": "stdin"},
]
LIVE_CODE = {
    "question_content": "Add two numbers.",
    "starter_code": "",
    "public_test_cases": json.dumps(CASES[:1]),
    "private_test_cases": json.dumps(CASES[1:]),
    "metadata": "{}",
}
FUNCTIONAL = LIVE_CODE | {
    "starter_code": "class Solution:\n    def add(self, xs: List[int], y: int) -> int:\n        ",
    "public_test_cases": "[]",
    "private_test_cases": json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "add"}),
}
PLAIN = {"prompt": "Write f(x) that doubles x.", "tests": ["assert f(4711) == 9422"]}


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_mbpp_shows_one_test_and_hides_the_others() -> None:
    task = read_task(MBPP, "1")
    assert task.question.startswith(MBPP["text"])
    assert MBPP["test_list"][0] in task.question
    assert MBPP["test_list"][1] not in task.question
    assert isinstance(task.tests, Asserts)
    assert task.tests.sources == (*MBPP["test_list"], *MBPP["challenge_test_list"])
    assert (task.tests.names, task.solution) == (("similar",), MBPP["code"])


def test_mbpp_of_the_hub_has_a_prompt_and_imports() -> None:
    columns = {
        "prompt": "Do it.",
        "code": "def f(x): ...",
        "test_imports": ["import math"],
        "test_list": ["assert f(1) == math.pi"],
    }
    task = read_task(columns, "1")
    assert task.question.startswith("Do it.")
    assert task.tests == Asserts(("import math", "assert f(1) == math.pi"), ("f",))


def test_the_setup_of_mbpp_may_use_classes_of_the_program() -> None:
    columns = {"text": "Height.", "test_setup_code": "root = Node(1)", "test_list": ["assert height(root) == 1"]}
    tests = read_task(columns, "1").tests
    assert isinstance(tests, Asserts)
    assert tests.names == ("Node", "height")


@pytest.mark.parametrize(
    ("source", "solution", "names", "modules"),
    [
        ("assert sum(1, 2) == 3", "def sum(a, b): ...", ("sum",), ()),
        ("assert f((1, 2)) == sys.getsizeof((1, 2))", None, ("f",), ("sys",)),
        ("assert calendar(3) == 4", None, ("calendar",), ()),
        ("def same(a, b): assert a == b\nsame(f(1), [g for g in range(2)])", None, ("f",), ()),
    ],
)
def test_names_of_the_program(
    source: str, solution: str | None, names: tuple[str, ...], modules: tuple[str, ...]
) -> None:
    tests = read_task({"prompt": "x", "tests": [source], "solution": solution}, "1").tests
    assert isinstance(tests, Asserts)
    assert (tests.names, tests.modules) == (names, modules)


def test_asserts_of_literals_are_known_calls() -> None:
    def calls(*sources: str) -> CallTests | None:
        tests = read_task({"prompt": "x", "tests": list(sources)}, "1").tests
        assert isinstance(tests, Asserts)
        return tests.calls

    found = calls("assert f(-1, (2, [3])) == {'a': {4}}", "assert g() == None\nassert f(b'x') == 1j")
    assert found is not None
    assert [(test.path, test.arguments, test.expected) for test in found.tests] == [
        (("f",), (-1, (2, [3])), {"a": {4}}),
        (("g",), (), None),
        (("f",), (b"x",), 1j),
    ]
    for other in (
        "assert f(g(1)) == 1",
        "assert f(x=1) == 1",
        "assert f(*[1]) == 1",
        "assert f(1) is None",
        "y = f(1)",
    ):
        assert calls("assert f(1) == 1", other) is None
    for other in ("assert f(1) == 1 == 1", "assert abs(f(1)) == 1", "assert f(1) == float('inf')", "assert not f(1)"):
        assert calls("assert f(1) == 1", other) is None


def test_human_eval() -> None:
    task = read_task(HUMAN_EVAL, "HumanEval/1")
    assert HUMAN_EVAL["prompt"].strip() in task.question
    assert "4711" not in task.question
    assert task.solution == HUMAN_EVAL["prompt"] + HUMAN_EVAL["canonical_solution"]
    assert task.prelude == HUMAN_EVAL["prompt"]
    assert isinstance(task.tests, Asserts)
    assert task.tests.names == ("twice",)
    assert "def helper" in task.tests.sources[0]
    assert "def twice" not in task.tests.sources[0]
    assert task.tests.sources[-1] == "check(twice)"


@pytest.mark.parametrize("private", [json.dumps(CASES[1:]), packed(json.dumps(CASES[1:])), CASES[1:]])
def test_live_code_bench_with_stdin(private: Any) -> None:
    task = read_task(LIVE_CODE | {"private_test_cases": private}, "abc")
    assert task.tests == (StdinTest("1 2\n", "3"), StdinTest("5 6\n", "11"))
    assert "standard input" in task.question
    assert "11" not in task.question
    assert task.solution is None


def test_live_code_bench_with_functions() -> None:
    task = read_task(FUNCTIONAL, "abc")
    assert task.tests == CallTests((CallTest(("Solution", "add"), ([1, 2], 3), 6, is_json=True),))
    assert "class Solution" in task.question
    assert "from typing import *" in task.prelude
    without_class = read_task(FUNCTIONAL | {"starter_code": ""}, "abc").tests
    assert isinstance(without_class, CallTests)
    assert without_class.tests[0].path == ("add",)


def test_plain_rows() -> None:
    assert "9422" not in read_task(PLAIN, "1").question
    shown = read_task(PLAIN | {"public_tests": ["assert f(1) == 2"], "solution": "def f(x): return 2 * x"}, "1")
    assert "assert f(1) == 2" in shown.question
    assert isinstance(shown.tests, Asserts)
    assert shown.tests.sources == ("assert f(1) == 2", "assert f(4711) == 9422")
    assert shown.solution == "def f(x): return 2 * x"
    case = {"input": "4711", "output": "9422"}
    stdin = read_task({"prompt": "Double it.", "tests": [case], "public_tests": [{"input": "1", "output": "2"}]}, "1")
    assert stdin.tests == (StdinTest("1", "2"), StdinTest("4711", "9422"))
    assert "Input:\n1\nOutput:\n2" in stdin.question
    assert "9422" not in stdin.question


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"row abc: column 'private_test_cases'.* would import posix.mkdir"):
        read_task(LIVE_CODE | {"private_test_cases": packed(Evil())}, "abc")
    assert not list(tmp_path.iterdir())


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.environments.code.rows.MAX_TEST_BYTES", 1000)
    with pytest.raises(UserError, match="larger than 1000 bytes"):
        read_task(LIVE_CODE | {"private_test_cases": packed(json.dumps(CASES * 100))}, "abc")
    assert MAX_TEST_BYTES > 1000


def without(columns: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in columns.items() if key != name}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question": "x", "answer": "y"}, r"no column holds tests.*this one has question, answer"),
        (without(MBPP, "text"), "no column 'text' or 'prompt'"),
        (MBPP | {"text": 3}, "column 'text' must be a text"),
        (MBPP | {"test_list": []}, "column 'test_list' has no test"),
        (MBPP | {"test_list": "assert f()"}, "column 'test_list' must be a list of texts"),
        (MBPP | {"test_list": ["assert f( =="]}, "column 'test_list' is not Python"),
        (MBPP | {"test_list": ["similar(1)"], "challenge_test_list": []}, "column 'test_list' has no assert"),
        (MBPP | {"test_list": ["assert eval(similar((), ())) == 1"]}, "uses eval"),
        (without(HUMAN_EVAL, "prompt"), "no column 'prompt'"),
        (without(HUMAN_EVAL, "test"), "no column 'test'"),
        (HUMAN_EVAL | {"test": "assert True"}, "does not define check"),
        (HUMAN_EVAL | {"entry_point": "thrice"}, "does not define 'thrice'"),
        (without(LIVE_CODE, "question_content"), "no column 'question_content'"),
        (LIVE_CODE | {"private_test_cases": "", "public_test_cases": ""}, "have no test"),
        (LIVE_CODE | {"private_test_cases": "{}"}, "must be a list of {input, output, testtype}"),
        (LIVE_CODE | {"private_test_cases": "not base64!"}, "neither JSON nor"),
        (LIVE_CODE | {"private_test_cases": '[{"input": "1"}]'}, "a test has no text 'output'"),
        (FUNCTIONAL | {"metadata": "{}"}, "column 'metadata' must hold func_name"),
        (FUNCTIONAL | {"metadata": "{"}, "column 'metadata' is not JSON"),
        (PLAIN | {"tests": []}, "column 'tests' has no test"),
        (PLAIN | {"tests": "assert f(1)"}, "column 'tests' must be a list"),
        (PLAIN | {"tests": ["assert f(1)", {"input": "", "output": ""}]}, "must be a list of {input, output}"),
        (PLAIN | {"tests": ["assert 1 + 1 == 2"]}, "calls no function of the program"),
        (PLAIN | {"solution": "def f(:"}, "column 'solution' is not Python"),
    ],
)
def test_mistakes_name_the_row_and_the_column(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_task(columns, "mine/7")
    assert "row mine/7" in str(caught.value)
