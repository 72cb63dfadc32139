"""The environment `code` with a real sandbox: every row format, partial credit, and whose fault a failure is."""

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from rstar2.config import EnvironmentSection, Recipe
from rstar2.environments import Services
from rstar2.environments.code import CODE, CodeJudge, ProgramReport, read_task
from rstar2.errors import InfrastructureError, UserError
from rstar2.records import Outcome, Problem, StopReason, Trace, Turn, Verdict
from rstar2.sandbox import Execution, ExecutionStatus, Limits, LocalExecutor, Request

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADD = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0", "assert add(5, 5) == 10"]
MBPP_TREE = {
    "text": "Write a function to find the height of a binary tree.",
    "code": "class Node:\n    def __init__(self, data):\n        self.data, self.left, self.right = data, None, None\n"
    "def height(node):\n    return 0 if node is None else 1 + max(height(node.left), height(node.right))",
    "test_setup_code": "root = Node(1)\nroot.left = Node(2)\nroot.right = Node(3)\nroot.left.left = Node(4)",
    "test_list": ["assert height(root) == 3", "assert height(root.left) == 2"],
}
HUMAN_EVAL = {
    "prompt": "import math\nfrom typing import List\n\ndef poly(xs: List[float], x: float) -> float:\n"
    "    return sum(c * x**i for i, c in enumerate(xs))\n\ndef find_zero(xs: List[float]) -> float:\n"
    '    """A zero of the line xs[0] + xs[1] * x."""\n',
    "canonical_solution": "    return -xs[0] / xs[1]\n",
    "entry_point": "find_zero",
    "test": "METADATA = {}\ndef check(candidate):\n    import random\n    for _ in range(20):\n"
    "        line = [random.randint(-9, 9), random.randint(1, 9)]\n        zero = candidate(line)\n"
    "        assert math.fabs(poly(line, zero)) < 1e-6\n    assert candidate([0, 1]) == 0\n",
}
LIVE_CODE = {
    "question_content": "Add the numbers.",
    "starter_code": "class Solution:\n    def total(self, xs: List[int]) -> int:\n        ",
    "public_test_cases": json.dumps([{"input": "[1, 2]", "output": "3", "testtype": "functional"}]),
    "private_test_cases": json.dumps([{"input": "[]", "output": "0", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "total"}),
}
LIVE_CODE_RIGHT = "class Solution:\n    def total(self, xs: List[int]) -> int:\n        return sum(xs)"
STDIN = {"prompt": "Double it.", "tests": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in range(4)]}


@pytest.fixture
def judge(executor: LocalExecutor) -> CodeJudge:
    return CodeJudge(executor, Limits(wall_s=2.0, cpu_s=2.0), 60.0)


async def report(judge: CodeJudge, columns: dict[str, Any], program: str | None = None) -> ProgramReport:
    task = read_task(columns, "row")
    return await judge.judge(task, program or task.solution or "")


def asserts(*tests: str) -> dict[str, Any]:
    return {"prompt": "Write it.", "tests": list(tests)}


@pytest.mark.parametrize("columns", [MBPP_TREE, HUMAN_EVAL], ids=["mbpp", "humaneval"])
async def test_the_solution_of_a_row_passes(judge: CodeJudge, columns: dict[str, Any]) -> None:
    found = await report(judge, columns)
    assert (found.is_right, found.share_passed, found.num_tests) == (True, 1.0, 2), found


@pytest.mark.parametrize(
    ("columns", "program", "passed"),
    [
        pytest.param(asserts(*ADD), "def add(a, b): return a + b", 4, id="right"),
        pytest.param(asserts(*ADD), "def add(a, b): return abs(a) + abs(b)", 3, id="one wrong"),
        pytest.param(asserts(*ADD), "def add(a, b): return 1 / 0", 0, id="raises"),
        pytest.param(asserts(*ADD), "def add(a, b)", 0, id="syntax"),
        pytest.param(asserts(*ADD), "def plus(a, b): return a + b", 0, id="another name"),
        pytest.param(asserts(*ADD), "def add(a, b):\n    print('noise', end='')\n    return a + b", 4, id="prints"),
        pytest.param(asserts(*ADD), "input()\ndef add(a, b): return a + b", 0, id="reads"),
        pytest.param(
            asserts(*ADD), "def add(a, b):\n    if a == 5:\n        while True: pass\n    return a + b", 3, id="slow"
        ),
        pytest.param(HUMAN_EVAL, "def find_zero(xs: List[float]): return -xs[0] / xs[1]", 2, id="needs the prompt"),
        pytest.param(HUMAN_EVAL, "def find_zero(xs): return 0", 1, id="zero"),
        pytest.param(LIVE_CODE, LIVE_CODE_RIGHT, 2, id="method"),
        pytest.param(LIVE_CODE, LIVE_CODE_RIGHT.replace("sum(xs)", "3"), 1, id="method of one case"),
        pytest.param(STDIN, "print(int(input()) * 2)", 4, id="stdin"),
        pytest.param(STDIN, "from __future__ import annotations\nprint(input(), end='0')", 1, id="stdin of one case"),
        pytest.param(STDIN, "n = int(input())\nprint(2 * n)\nassert n < 3", 3, id="stdin, then fails"),
        pytest.param(STDIN, "if __name__ == '__main__': print(2 * int(input()))", 4, id="stdin, main"),
    ],
)
async def test_programs(judge: CodeJudge, columns: dict[str, Any], program: str, passed: int) -> None:
    found = await report(judge, columns, program)
    assert (found.num_passed, found.is_right) == (passed, passed == found.num_tests), found
    assert found.is_right == (not found.message)


async def test_live_code_bench_with_stdin_has_the_imports_of_its_harness(judge: CodeJudge) -> None:
    cases = [{"input": "3 4", "output": "5.0", "testtype": "stdin"}]
    columns = {"question_content": "Hypotenuse.", "public_test_cases": cases, "private_test_cases": []}
    program = "from __future__ import annotations\nprint(sqrt(sum(int(x) ** 2 for x in stdin.read().split())))"
    assert (await report(judge, columns, program)).is_right


COUNTER = """
class Counter:
    def __init__(self):
        self.n = 0
    def add(self, k=1):
        self.n += k
        return self
"""
PYTHON_TESTS = {
    "objects keep their state": (
        asserts("c = Counter()\nc.add()\nassert c.n == 1", "c.add(k=2)\nassert c.n == 3\nassert c.add().n == 4"),
        COUNTER,
        COUNTER.replace("k\n", "1\n"),
    ),
    "arguments change in place": (
        asserts("xs = [3, 1, 2]\norder(xs)\nassert xs == [1, 2, 3]"),
        "def order(xs): xs.sort()",
        "def order(xs): return sorted(xs)",
    ),
    "expected exceptions": (
        asserts("try:\n    root(-1)\n    assert False\nexcept ValueError:\n    pass", "assert root(4) == 2"),
        "class Negative(ValueError): pass\ndef root(x):\n    if x < 0: raise Negative('negative')\n    return x ** 0.5",
        "def root(x): return abs(x) ** 0.5",
    ),
    "results of results": (
        asserts(
            "s = coded('abc')\nassert s != 'abc'\nassert plain(s) == 'abc'", "assert plain(coded(coded('x'))) == 'y'"
        ),
        "def coded(s): return ''.join(chr(ord(c) + 1) for c in s)\n"
        "def plain(s): return ''.join(chr(ord(c) - 1) for c in s)",
        "def coded(s): return s + '!'\ndef plain(s): return s",
    ),
    "helpers with asserts": (
        asserts(
            "def same(a, b):\n    assert type(a) is type(b)\n    assert a == b\nfor n in range(9): same(f(n), n * n)"
        ),
        "def f(n): return n * n",
        "def f(n): return n * n + (n == 8)",
    ),
    "iterators": (
        asserts("assert list(evens(5)) == [0, 2, 4]", "assert next(evens(3)) == 0", "assert 2 in evens(3)"),
        "def evens(n):\n    for i in range(0, n, 2): yield i",
        "def evens(n):\n    for i in range(1, n, 2): yield i",
    ),
    "functions of functions": (
        asserts("assert adder(3)(4) == 7", "assert apply(len, [1, 2]) == 2"),
        "def adder(a): return lambda b: a + b\ndef apply(f, x): return f(x)",
        "def adder(a): return lambda b: a\ndef apply(f, x): return x",
    ),
    "objects that are compared": (
        asserts("assert P(1) == P(1)\nassert P(1) != P(2)\nassert P(3).x == 3\nassert str(P(4)) == 'P4'"),
        "class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, other): return self.x == other.x\n"
        "    def __str__(self): return f'P{self.x}'",
        "class P:\n    def __init__(self, x): self.x = x",
    ),
    "arrays": (
        asserts("import numpy as np\nassert np.allclose(unit(2), np.eye(2))\nassert unit(3).shape == (3, 3)"),
        "import numpy\ndef unit(n): return numpy.eye(n)",
        "import numpy\ndef unit(n): return numpy.zeros((n, n))",
    ),
}


@pytest.mark.parametrize("name", PYTHON_TESTS)
async def test_tests_are_ordinary_python(judge: CodeJudge, name: str) -> None:
    columns, right, wrong = PYTHON_TESTS[name]
    found = await report(judge, columns, right)
    assert (found.is_right, found.share_passed) == (True, 1.0), found
    assert not (await report(judge, columns, wrong)).is_right


async def test_a_program_that_never_ends_costs_one_time_limit(executor: LocalExecutor) -> None:
    judge = CodeJudge(executor, Limits(wall_s=0.3, cpu_s=1.0), 60.0)
    program = "def add(a, b):\n    while a == 1: pass\n    return a + b"
    found = await report(judge, asserts(*ADD), program)
    assert (found.num_passed, found.num_tests, found.is_right) == (0, 4, False), "tests after the first were run"
    found = await report(judge, STDIN, "n = int(input())\nwhile n == 0: pass\nprint(2 * n)")
    assert (found.num_passed, found.num_tests, found.is_right) == (0, 4, False), "tests after the first were run"


class FaultyExecutor:
    """Loses executions as a sandbox does whose machine fails."""

    async def run(self, _request: Request) -> Execution:
        return Execution(ExecutionStatus.INFRASTRUCTURE, message="the worker was lost")

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        for index, request in enumerate(requests):
            yield index, await self.run(request)


class LosesPrograms(FaultyExecutor):
    def __init__(self, executor: LocalExecutor) -> None:
        self.run = executor.run  # type: ignore[method-assign]

    async def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        for index, _ in enumerate(requests):
            yield index, Execution(ExecutionStatus.QUEUE_TIMEOUT, message="no worker was free")


@pytest.mark.parametrize("columns", [asserts(*ADD), LIVE_CODE, STDIN], ids=["asserts", "functional", "stdin"])
async def test_a_fault_of_the_sandbox_is_no_verdict(executor: LocalExecutor, columns: dict[str, Any]) -> None:
    for faulty in (FaultyExecutor(), LosesPrograms(executor)):
        judge = CodeJudge(faulty, Limits(), 60.0)  # type: ignore[arg-type]
        with pytest.raises(InfrastructureError, match="could not be judged"):
            await report(judge, columns, "def add(a, b): return a + b")


async def test_numbers_of_other_types_are_compared_as_python_does(judge: CodeJudge) -> None:
    program = "from fractions import Fraction\ndef half(x): return Fraction(x, 2)"
    found = await report(judge, asserts("assert half(4) == 2", "assert half(3) == 1.5", "assert half(1) == 1"), program)
    assert (found.num_passed, found.num_tests) == (2, 3), found


async def test_tests_that_cannot_run_are_no_verdict(judge: CodeJudge) -> None:
    with pytest.raises(InfrastructureError, match="No module named 'nowhere'"):
        await report(judge, asserts("import nowhere\nassert f(1) == nowhere.x"), "def f(x): return x")


def trace(*turns: str) -> Trace:
    made = tuple(Turn((1,), (), text, StopReason.END_OF_TURN) for text in turns)
    return Trace("t", "p", (1,), "prompt", made, Outcome.ANSWERED)


async def judged(executor: LocalExecutor, settings: dict[str, Any], columns: dict[str, Any], *turns: str) -> Any:
    recipe = Recipe.model_validate(
        {"name": "r", "model": {"name": "tiny:qwen3"}, "sandbox": {"limits": {"wall_s": 3.0}}}
    )
    section = EnvironmentSection(source="code", settings=settings)
    problem = Problem("mine/1", "", "", row=columns)
    async with CODE.open(section, Services(recipe, executor)) as environment:
        (message,) = environment.opening(problem).messages
        assert message["role"] == "user"
        assert "<answer>" in message["content"]
        episode = await environment.begin(problem)
        texts = turns or environment.solution(problem)
        judgement = await episode.score(trace(*texts))
        await episode.close()
        return judgement


ALMOST = "<answer>\n```python\ndef add(a, b): return abs(a) + abs(b)\n```\n</answer>"


async def test_an_episode_is_scored_by_all_tests(executor: LocalExecutor) -> None:
    judgement = await judged(executor, {}, MBPP_TREE)
    assert (judgement.verdict, judgement.score, judgement.format_penalty) == (Verdict.RIGHT, None, 0.0)
    assert judgement.details == {"tests_passed": 1.0}
    judgement = await judged(executor, {}, asserts(*ADD), "a call", ALMOST)
    assert (judgement.verdict, judgement.score, judgement.details) == (Verdict.WRONG, None, {"tests_passed": 0.75})
    assert judgement.answer == "def add(a, b): return abs(a) + abs(b)"
    judgement = await judged(executor, {}, asserts(*ADD), "I do not know.")
    assert (judgement.verdict, judgement.details, judgement.format_penalty) == (
        Verdict.NO_ANSWER,
        {"tests_passed": 0},
        1,
    )


async def test_partial_credit_is_the_share_of_tests(executor: LocalExecutor) -> None:
    judgement = await judged(executor, {"partial_credit": True}, asserts(*ADD), ALMOST)
    assert (judgement.verdict, judgement.score) == (Verdict.WRONG, 0.75)
    judgement = await judged(executor, {"partial_credit": True}, MBPP_TREE)
    assert (judgement.verdict, judgement.score) == (Verdict.RIGHT, 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partial": True}, "no setting 'partial'; it has partial_credit"),
        ({"partial_credit": 1}, "must be true or false"),
    ],
)
async def test_wrong_settings(executor: LocalExecutor, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        await judged(executor, settings, asserts(*ADD), ALMOST)
