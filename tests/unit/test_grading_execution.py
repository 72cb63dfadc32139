"""From what the grading program said, or did not get to say, to a verdict."""

import json
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Self

import pytest

from rstar2.errors import InfrastructureError
from rstar2.grading import Grader, Method
from rstar2.grading.grader import read_execution
from rstar2.records import Verdict
from rstar2.sandbox import Execution, ExecutionStatus, OnOutput, Request, Session

pytestmark = pytest.mark.unit


def said(*lines: dict[str, str]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


STARTED = said({"stage": "started"})
GOLD = STARTED + said({"stage": "gold"})
ANSWER = GOLD + said({"stage": "answer"})


@pytest.mark.parametrize(
    ("stdout", "verdict"),
    [
        (ANSWER + said({"verdict": "right"}), Verdict.RIGHT),
        (ANSWER + said({"verdict": "wrong"}), Verdict.WRONG),
        (GOLD + said({"verdict": "answer_unreadable"}), Verdict.WRONG),
        (STARTED + said({"verdict": "gold_unreadable"}), Verdict.UNDECIDED),
    ],
)
def test_a_finished_run(stdout: str, verdict: Verdict) -> None:
    assert read_execution(Execution(ExecutionStatus.OK, stdout=stdout))[0] is verdict


@pytest.mark.parametrize(
    "status",
    [ExecutionStatus.TIMEOUT, ExecutionStatus.MEMORY, ExecutionStatus.SIGNAL, ExecutionStatus.ERROR],
)
@pytest.mark.parametrize(
    ("stdout", "verdict"),
    [(STARTED, Verdict.UNDECIDED), (GOLD, Verdict.WRONG), (ANSWER, Verdict.UNDECIDED)],
)
def test_a_stopped_run_blames_the_expression_that_stopped_it(
    status: ExecutionStatus, stdout: str, verdict: Verdict
) -> None:
    found, message = read_execution(Execution(status, stdout=stdout, cpu_s=4.0))
    assert found is verdict
    assert status in message


@pytest.mark.parametrize(
    "execution",
    [
        Execution(ExecutionStatus.INFRASTRUCTURE),
        Execution(ExecutionStatus.QUEUE_TIMEOUT),
        Execution(ExecutionStatus.ERROR, stderr="ModuleNotFoundError: math_verify"),
        Execution(ExecutionStatus.TIMEOUT),
        Execution(ExecutionStatus.OK),
        Execution(ExecutionStatus.OK, stdout="not JSON\n"),
    ],
)
def test_our_own_faults_are_never_verdicts(execution: Execution) -> None:
    with pytest.raises(InfrastructureError):
        read_execution(execution)


class UnusableExecutor:
    """Fails the test that touches it."""

    async def run(self, request: Request, on_output: OnOutput | None = None) -> Execution:  # noqa: ARG002
        raise AssertionError(f"the executor was asked to run {request.stdin}")

    def run_many(self, requests: Iterable[Request]) -> AsyncIterator[tuple[int, Execution]]:
        raise AssertionError(requests)

    async def session(self) -> Session:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@pytest.mark.parametrize(
    ("text", "verdict", "answer", "method"),
    [
        (r"<answer>\boxed{1,234}</answer>", Verdict.RIGHT, "1,234", Method.INTEGERS),
        (r"<answer>\boxed{4321}</answer>", Verdict.WRONG, "4321", Method.INTEGERS),
        (r"<answer>1234</answer>", Verdict.NO_ANSWER, None, Method.EXTRACTION),
        (r"<answer>\boxed{9^{9^{9^9}}}</answer>", Verdict.WRONG, "9^{9^{9^9}}", Method.SCREEN),
    ],
)
async def test_integers_and_refusals_never_touch_the_executor(
    text: str, verdict: Verdict, answer: str | None, method: Method
) -> None:
    grade = await Grader(UnusableExecutor()).grade(text, gold="1234")
    assert (grade.verdict, grade.answer, grade.method) == (verdict, answer, method)
