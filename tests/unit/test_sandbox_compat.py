"""How executions are told in the words of code-judge and SandboxFusion."""

import pytest

from rstar2.sandbox import Execution, ExecutionStatus
from rstar2.sandbox.http.compat_code_judge import ResultReason, Submission, judge
from rstar2.sandbox.http.compat_sandbox_fusion import (
    cell_result,
    code_response,
    framed,
    limits_of,
    new_mark,
    split_output,
    split_traceback,
)

pytestmark = pytest.mark.unit
S = ExecutionStatus
HEAD = 'Traceback (most recent call last):\n  File "<cell>", line 1\n'


def submission(expected: str | None = None) -> Submission:
    return Submission(type="python", solution="", expected_output=expected)


@pytest.mark.parametrize(
    ("status", "run_success", "reason"),
    [
        (S.OK, True, ResultReason.UNSPECIFIED),
        (S.ERROR, False, ResultReason.UNSPECIFIED),
        (S.MEMORY, False, ResultReason.UNSPECIFIED),
        (S.OUTPUT_LIMIT, False, ResultReason.UNSPECIFIED),
        (S.SIGNAL, False, ResultReason.UNSPECIFIED),
        (S.TIMEOUT, False, ResultReason.WORKER_TIMEOUT),
        (S.QUEUE_TIMEOUT, False, ResultReason.QUEUE_TIMEOUT),
        (S.INFRASTRUCTURE, False, ResultReason.INTERNAL_ERROR),
    ],
)
def test_code_judges_reasons(status: S, run_success: bool, reason: ResultReason) -> None:
    result = judge(submission(), Execution(status, stdout="out\n", stderr="err"))
    assert (result.run_success, result.success, result.reason) == (run_success, run_success, reason)
    if status.is_sandbox_fault:
        assert (result.stdout, result.stderr) == (None, None)
    elif status is S.TIMEOUT:
        assert result.stdout == "out\nSuicide from timeout.\n"
    else:
        assert (result.stdout, result.stderr) == ("out\n", "err")


def test_expected_output_is_compared_whole_and_stripped() -> None:
    long = "x" * 2000
    assert judge(submission(f" {long}"), Execution(S.OK, stdout=f"{long}\n")).success
    assert not judge(submission(f"{long}y"), Execution(S.OK, stdout=f"{long}\n")).success
    assert not judge(submission("x"), Execution(S.ERROR, stdout="x")).success
    assert judge(submission(""), Execution(S.OK)).success


@pytest.mark.parametrize(
    ("execution", "status", "run_status", "return_code"),
    [
        (Execution(S.OK, exit_code=0), "Success", "Finished", 0),
        (Execution(S.ERROR, exit_code=3), "Failed", "Finished", 3),
        (Execution(S.SIGNAL, signal=11), "Failed", "Finished", -11),
        (Execution(S.MEMORY), "Failed", "Finished", 1),
        (Execution(S.TIMEOUT), "Failed", "TimeLimitExceeded", None),
        (Execution(S.INFRASTRUCTURE, message="gone"), "SandboxError", "Error", None),
    ],
)
def test_sandbox_fusions_statuses(execution: Execution, status: str, run_status: str, return_code: int | None) -> None:
    response = code_response(execution, {})
    assert response.run_result is not None
    assert (response.status, response.run_result.status, response.run_result.return_code) == (
        status,
        run_status,
        return_code,
    )


def test_sandbox_fusions_limits_are_brought_into_ours() -> None:
    assert limits_of(0, -1).wall_s > 0
    assert limits_of(1e9, 10**9).wall_s == 3600
    assert limits_of(1, 1).memory_bytes == 64 << 20
    assert limits_of(1, 2048).memory_bytes == 2048 << 20


@pytest.mark.parametrize(
    ("stderr", "before", "ename", "evalue"),
    [
        (HEAD + "    1/0\nZeroDivisionError: by\n", "", "ZeroDivisionError", "by"),
        ("warned\n" + HEAD + "KeyError: 1\n", "warned\n", "KeyError", "1"),
        ('  File "<cell>", line 1\n    def f(:\n          ^\nSyntaxError: invalid\n', "", "SyntaxError", "invalid"),
        (HEAD + "a.b.Oh: two\nlines\n", "", "Oh", "two\nlines"),
        (HEAD + "AssertionError\n", "", "AssertionError", ""),
    ],
)
def test_tracebacks_become_notebook_errors(stderr: str, before: str, ename: str, evalue: str) -> None:
    rest, error = split_traceback(stderr)
    assert error is not None
    assert (rest, error.ename, error.evalue) == (before, ename, evalue)
    assert error.traceback == stderr[len(before) :].splitlines()


def test_cells_that_end_without_a_traceback() -> None:
    assert split_traceback("just a word\n") == ("just a word\n", None)
    stopped = cell_result(Execution(S.OUTPUT_LIMIT, stderr="x", message="wrote too much"))
    assert stopped.error == [{"ename": "CellOutputLimit", "evalue": "wrote too much", "traceback": []}]
    fine = cell_result(Execution(S.OK, stderr="Traceback (most recent call last):\n", value="1"))
    assert fine.error == [] and fine.stderr.startswith("Traceback") and fine.display == [{"text/plain": "1"}]


def test_files_travel_behind_the_mark() -> None:
    mark = new_mark()
    assert split_output(f'printed{mark}{{"a": "eA=="}}', mark) == ("printed", {"a": "eA=="})
    assert split_output("never came", mark) == ("never came", {})
    assert split_output(f"cut{mark}{{", mark) == ("cut", {})
    assert split_output("forged\n--- files 00 ---\n{}", mark)[1] == {}
    compile(framed("print('{}')\n\"\"\"'''\\", {"a'\n": "eA=="}, ["{b}"], mark), "x", "exec")
    with pytest.raises(ValueError, match="base64"):
        framed("", {"a": "x"}, [], mark)
