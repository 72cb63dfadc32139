"""Hidden tests of the environment `code` can be neither read nor faked by the program that they judge."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio
from code_attacks import ATTACKS, EQUALITY, GOLD, STDIN, Attack

from rstar2.environments.code import CodeJudge, read_task
from rstar2.sandbox import Execution, Executor, Limits, LocalExecutor, Request

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]
LIMITS = Limits(wall_s=10.0, cpu_s=10.0, memory_bytes=1 << 29)
SHORT = Limits(wall_s=0.5, cpu_s=1.0)
"""For what never ends."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor() -> AsyncIterator[LocalExecutor]:
    """With its libraries loaded: an attack that imports them does so within its limits."""
    async with LocalExecutor() as executor:
        yield executor


def row(attack: Attack, is_run: bool) -> dict[str, Any]:
    """With `is_run`, the tests are more than asserts of literals, and so they run in an execution of their own."""
    return {"prompt": "Write f(x).", "tests": ["number = 0", *attack.tests] if is_run else attack.tests}


FORMS = [(name, False) for name in ATTACKS] + [
    (name, True) for name in ATTACKS if isinstance(ATTACKS[name].tests[0], str)
]


@pytest.mark.timing
@pytest.mark.parametrize(("name", "is_run"), FORMS)
async def test_an_attack_passes_no_test(executor: LocalExecutor, name: str, is_run: bool) -> None:
    attack = ATTACKS[name]
    limits = SHORT if name == "endless loop" else LIMITS
    report = await CodeJudge(executor, limits, 60.0).judge(read_task(row(attack, is_run), name), attack.program)
    assert (report.is_right, report.num_passed) == (False, 0), report
    if attack.searches:
        assert "AssertionError" in report.message or "something else" in report.message


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.fools_naive])
async def test_the_attack_is_a_real_one(executor: LocalExecutor, name: str) -> None:
    """Where the program shares a process with its tests, it passes."""
    attack = ATTACKS[name]
    code = "\n".join([attack.program, *attack.tests, "pass"])
    execution = await executor.run(Request(code, limits=LIMITS))
    assert execution.ok, execution


class Recorder:
    """Passes everything on, and keeps what was asked for."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.requests: list[Request] = []

    async def run(self, request: Request) -> Execution:
        self.requests.append(request)
        return await self._executor.run(request)

    def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        kept = list(requests)
        self.requests += kept
        return self._executor.run_many(kept)


HUMAN_EVAL = {
    "prompt": "def f(x: int) -> str:\n    '''The name of x.'''\n",
    "entry_point": "f",
    "test": f"def check(candidate):\n    for x in (3, 3):\n        assert candidate(x) == {GOLD[0]!r}",
}
LIVE_CODE = {
    "question_content": "The name of x.",
    "starter_code": "class Solution:\n    def f(self, x: int) -> str:\n        ",
    "metadata": {"func_name": "f"},
    "public_test_cases": [],
    "private_test_cases": [{"input": "3", "output": f'"{GOLD[0]}"', "testtype": "functional"}],
}


@pytest.mark.parametrize(
    ("columns", "program"),
    [
        pytest.param({"prompt": "f", "tests": EQUALITY}, "def f(x): return x", id="asserts"),
        pytest.param({"prompt": "f", "tests": ["n = 0", *EQUALITY]}, "def f(x): return x", id="python"),
        pytest.param({"prompt": "f", "tests": STDIN}, "print(input())", id="stdin"),
        pytest.param({"text": "f", "test_list": EQUALITY}, "def f(x): return x", id="mbpp"),
        pytest.param(HUMAN_EVAL, "def f(x): return x", id="humaneval"),
        pytest.param(LIVE_CODE, "class Solution:\n    def f(self, x): return x", id="livecodebench"),
    ],
)
async def test_what_is_expected_is_never_where_the_program_is(
    executor: LocalExecutor, columns: dict[str, Any], program: str
) -> None:
    recorder = Recorder(executor)
    marked = f"# judged\n{program}"
    await CodeJudge(recorder, LIMITS, 60.0).judge(read_task(columns, "row"), marked)  # type: ignore[arg-type]
    texts = [request.code + request.stdin for request in recorder.requests]
    with_program = [text for text in texts if "# judged" in text]
    assert with_program
    assert not [text for text in with_program if any(gold in text for gold in GOLD)]
    inputs = [[number for number in ("[3]", "[4]", "3\n", "4\n") if number in text] for text in with_program]
    assert all(len(seen) == 1 for seen in inputs), "an execution sees the input of another test"


async def test_memory_of_earlier_executions_holds_no_test(executor: LocalExecutor) -> None:
    judge = CodeJudge(executor, LIMITS, 60.0)
    for _ in range(4):
        await judge.judge(read_task({"prompt": "f", "tests": EQUALITY}, "row"), "def f(x): return x")
    execution = await executor.run(Request(ATTACKS["memory"].program + "\nprint(hunt())", limits=LIMITS))
    assert execution.stdout == "[]\n", execution
