"""Judges a program by its tests, in the sandbox. The program is hostile.

Invariant: no execution that holds the program holds expected values. Executions of the program get inputs and return
values; the comparison is made here, or in executions that hold the tests and not the program. Each test has its own
execution, so a program cannot read another test's input; only tests that share objects of the program share an
execution. If several executions return a value, the first counts.
"""

import base64
import json
import marshal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import MAGIC_NUMBER
from typing import Any, NoReturn

from rstar2.environments.code.calls import (
    Answers,
    Call,
    batches_of,
    call_job,
    holds_made,
    read_answers,
    value_failure,
    why_ended,
)
from rstar2.environments.code.compare import same_output
from rstar2.environments.code.task import Asserts, CallTests, CodeTask, StdinTest
from rstar2.errors import InfrastructureError
from rstar2.sandbox import Execution, ExecutionStatus, Executor, Limits, Request
from rstar2.sandbox.execution import GIB, MAX_OUTPUT_BYTES

CHECKER_LIMITS = Limits(wall_s=10.0, cpu_s=10.0, memory_bytes=1 * GIB, output_bytes=MAX_OUTPUT_BYTES)
"""The tests' limits. Comparing values takes milliseconds, unless a value of the program is slow."""
MAX_RUNS_OF_TESTS = 32
"""The maximum number of runs of the tests. Each level of calls that depend on earlier results needs another run."""
NUM_KEPT_FIRST_RUNS = 256
"""The number of cached first runs of a row's tests. Such a run asks for the same calls for any program, and the
rollouts of a problem are judged at about the same time."""
NUM_AT_ONCE = 8
"""Concurrent executions of one program. The first execution runs alone: an endless program costs one time limit."""


def _program(*names: str) -> str:
    """Join these files into one program, compiled here once, since compiling would take most of a test's time. A
    sandbox of another Python version compiles the source itself."""
    files = (resources.files("rstar2.environments.code").joinpath(f"{name}.py") for name in names)
    source = "\n\n".join((*(file.read_text(encoding="utf-8") for file in files), "main()\n"))
    compiled = base64.b64encode(marshal.dumps(compile(source, "<judge>", "exec"))).decode()
    return f"""
import base64, importlib.util, marshal
if importlib.util.MAGIC_NUMBER == {MAGIC_NUMBER!r}:
    exec(marshal.loads(base64.b64decode({compiled!r})))
else:
    exec({source!r})
print()
"""


_CANDIDATE = _program("values", "candidate_program")
_CHECKER = _program("values", "checker_program")


@dataclass(frozen=True, slots=True)
class ProgramReport:
    num_passed: int
    num_tests: int
    message: str = ""
    """The first failure, for people only: it may reveal something about the tests."""
    is_right: bool = False

    @property
    def share_passed(self) -> float:
        return self.num_passed / self.num_tests if self.num_tests else float(self.is_right)


@dataclass(frozen=True, slots=True)
class CodeJudge:
    executor: Executor
    limits: Limits
    """Limits of each execution of the program."""
    queue_s: float
    _first_runs: dict[Asserts, dict[str, Any]] = field(default_factory=dict, repr=False, compare=False)

    async def judge(self, task: CodeTask, program: str) -> ProgramReport:
        """Judge a program. InfrastructureError if the sandbox failed, or the tests cannot run for any program."""
        match task.tests:
            case Asserts() as asserts:
                return await self._judge_asserts(asserts, task, program)
            case CallTests() as calls:
                return (await self._judge_calls(calls, task, program))[0]
            case tests:
                return await self._judge_stdin(tests, task, program)

    async def _judge_stdin(self, tests: Sequence[StdinTest], task: CodeTask, program: str) -> ProgramReport:
        code = _with_prelude(task.prelude, program) if task.prelude else program
        executions = await self._run([self._request(code, test.stdin) for test in tests])
        failures = [_stdout_failure(*pair) for pair in zip(executions, tests, strict=True)]
        return _report(failures)

    async def _judge_calls(self, calls: CallTests, task: CodeTask, program: str) -> tuple[ProgramReport, bool]:
        """The report, and whether it is certain: values with a constructor, as a Fraction, are not compared here."""
        jobs = [call_job(test.path, test.arguments) for test in calls.tests]
        executions = await self._run([self._candidate(task, program, job) for job in jobs])
        answers = [read_answers(execution, job)[job[-1]["id"]] for execution, job in zip(executions, jobs, strict=True)]
        failures = [value_failure(*pair) for pair in zip(answers, calls.tests, strict=True)]
        return _report(failures), not any(map(holds_made, answers))

    async def _judge_asserts(self, asserts: Asserts, task: CodeTask, program: str) -> ProgramReport:
        if asserts.calls is not None:
            found, is_certain = await self._judge_calls(asserts.calls, task, program)
            if is_certain:
                return found
        answers: Answers = {}
        for _ in range(MAX_RUNS_OF_TESTS):
            report = await (self._check(asserts, answers) if answers else self._first_run(asserts))
            if report is None:
                return ProgramReport(0, 1, "the tests did not end with the program's values")
            batches = [batch for batch in batches_of(report["calls"]) if any(c["id"] not in answers for c in batch)]
            if not batches:
                return _assert_report(report)
            executions = await self._run([self._candidate(task, program, batch) for batch in batches])
            for batch, execution in zip(batches, executions, strict=True):
                answers = read_answers(execution, batch) | answers
        return ProgramReport(0, 1, f"the tests did not end within {MAX_RUNS_OF_TESTS} runs")

    async def _first_run(self, asserts: Asserts) -> dict[str, Any]:
        """The tests' report without answers: their calls."""
        if asserts not in self._first_runs:
            report = await self._check(asserts, {})
            if report is None or not report["calls"]:
                errors = "; ".join(report["errors"]) if report else "they ran into a limit"
                raise InfrastructureError(f"the tests cannot be run: {errors or 'they do not call the program'}")
            if len(self._first_runs) >= NUM_KEPT_FIRST_RUNS:
                self._first_runs.clear()
            self._first_runs[asserts] = report
        return self._first_runs[asserts]

    async def _check(self, asserts: Asserts, answers: Answers) -> dict[str, Any] | None:
        """Run the tests with these answers; None if they exceeded a limit."""
        job = {"sources": asserts.sources, "names": asserts.names, "modules": asserts.modules, "answers": answers}
        execution = await self.executor.run(Request(_CHECKER, json.dumps(job), CHECKER_LIMITS, self.queue_s))
        if execution.status.is_sandbox_fault:
            _fail(execution)
        return _last_line(execution)

    async def _run(self, requests: Sequence[Request]) -> list[Execution | None]:
        """Run the requests; None for those not started because an earlier one ran out of time."""
        executions: list[Execution | None] = [None] * len(requests)
        for start, end in _waves(len(requests)):
            async for index, execution in self.executor.run_many(requests[start:end]):
                if execution.status.is_sandbox_fault:
                    _fail(execution)
                executions[start + index] = execution
            if any(done and done.status is ExecutionStatus.TIMEOUT for done in executions[start:end]):
                break
        return executions

    def _candidate(self, task: CodeTask, program: str, calls: Sequence[Call]) -> Request:
        sources = [task.prelude, program] if task.prelude else [program]
        return self._request(_CANDIDATE, json.dumps({"sources": sources, "calls": calls}))

    def _request(self, code: str, stdin: str) -> Request:
        return Request(code, stdin, self.limits, self.queue_s)


def _fail(execution: Execution) -> NoReturn:
    raise InfrastructureError(f"the program could not be judged ({execution.status}): {execution.message}")


def _waves(num_requests: int) -> Iterator[tuple[int, int]]:
    yield 0, 1
    for start in range(1, num_requests, NUM_AT_ONCE):
        yield start, start + NUM_AT_ONCE


def _with_prelude(prelude: str, program: str) -> str:
    """Runs both, compiled separately: a program may begin with an import from `__future__`."""
    compiled = (f"exec(compile({source!r}, '<program>', 'exec', dont_inherit=True))" for source in (prelude, program))
    return "\n".join(compiled) + "\nNone"


def _stdout_failure(execution: Execution | None, test: StdinTest) -> str:
    if execution is None or not execution.ok:
        return why_ended(execution)
    return "" if same_output(execution.stdout, test.stdout) else "it prints something else"


def _last_line(execution: Execution) -> dict[str, Any] | None:
    try:
        report = json.loads(execution.stdout.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    return report if execution.ok and isinstance(report, dict) else None


def _assert_report(report: Mapping[str, Any]) -> ProgramReport:
    """Report asserts. A test that was not reached counts as failed only if the tests did not run to their end."""
    passed, tests, failed = set(report["passed"]), set(report["tests"]), dict(report["failed"])
    has_ended = not report["errors"] and failed.keys() <= tests
    reached = (passed | failed.keys()) & tests if has_ended else tests
    is_right = not failed and not report["errors"] and (bool(passed) or not tests)
    message = next(iter([*report["errors"], *failed.values()]), "" if is_right else "no test was reached")
    return ProgramReport(len(passed), len(reached), message, is_right)


def _report(failures: Sequence[str]) -> ProgramReport:
    num_failed = sum(map(bool, failures))
    message = next((f"test {number}: {why}" for number, why in enumerate(failures, 1) if why), "")
    return ProgramReport(len(failures) - num_failed, len(failures), message, not num_failed)
