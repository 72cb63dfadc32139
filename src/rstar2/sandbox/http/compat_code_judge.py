"""code-judge's endpoints, so that its clients (among them rStar2-Agent's released tools) can use this service.

Fields, defaults and the meaning of `success`, `run_success` and `reason` follow code-judge; so does the status, always
200 once the body is valid. Expected outputs are compared here, in the service: they never enter the sandbox.
"""

import asyncio
import uuid
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

from aiohttp import web
from pydantic import Field, TypeAdapter

from rstar2.sandbox.execution import Execution, ExecutionStatus
from rstar2.sandbox.executor import Request
from rstar2.sandbox.http.operations import ApiAnswer, Operation, json_response, read_body
from rstar2.sandbox.http.schema import Code, LenientRequest, Stdin
from rstar2.sandbox.http.service import Service

MAX_SUBMISSIONS = 65_536
MAX_OUTPUT_CHARS = 1000
"""The size limit of stdout and of stderr, each. It is code-judge's default, so policies trained with code-judge have
seen it."""
QUEUE_S = 19.0
"""code-judge gives a single submission or a plain batch 4 s in the queue and 15 s to run."""
LONG_QUEUE_S = 3600.0
TIMEOUT_NOTE = "Suicide from timeout.\n"
"""code-judge appends this text to the stdout of a timed-out program; its callers show it to the policy."""


class ResultReason(StrEnum):
    UNSPECIFIED = ""
    INTERNAL_ERROR = "internal_error"
    WORKER_TIMEOUT = "worker_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    INVALID_INPUT = "invalid_input"


class Submission(LenientRequest):
    sub_id: str | None = None
    type: Literal["python", "cpp", "math"]
    options: dict[str, str] | None = None
    solution: Code
    input: Stdin | None = None
    expected_output: Stdin | None = None


class BatchSubmission(LenientRequest):
    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: list[Submission] = Field(min_length=1, max_length=MAX_SUBMISSIONS)


@dataclass(frozen=True, slots=True)
class JudgeResult:
    sub_id: str
    success: bool
    """The program exited with 0, and printed the expected output if there is one."""
    run_success: bool
    """The program ran to its end and exited with 0."""
    cost: float
    reason: ResultReason


@dataclass(frozen=True, slots=True)
class SubmissionResult(JudgeResult):
    stdout: str | None
    stderr: str | None

    def without_output(self) -> JudgeResult:
        return JudgeResult(self.sub_id, self.success, self.run_success, self.cost, self.reason)


@dataclass(frozen=True, slots=True)
class BatchSubmissionResult:
    sub_id: str
    results: list[SubmissionResult]


@dataclass(frozen=True, slots=True)
class BatchJudgeResult:
    sub_id: str
    results: list[JudgeResult]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    queue: int
    num_workers: int


SUBMISSION = TypeAdapter(Submission)
BATCH_SUBMISSION = TypeAdapter(BatchSubmission)
SUBMISSION_RESULT = TypeAdapter(SubmissionResult)
JUDGE_RESULT = TypeAdapter(JudgeResult)
BATCH_SUBMISSION_RESULT = TypeAdapter(BatchSubmissionResult)
BATCH_JUDGE_RESULT = TypeAdapter(BatchJudgeResult)
SERVER_STATUS = TypeAdapter(ServerStatus)
PONG = TypeAdapter(Literal["pong"])

_REASONS = {
    ExecutionStatus.TIMEOUT: ResultReason.WORKER_TIMEOUT,
    ExecutionStatus.QUEUE_TIMEOUT: ResultReason.QUEUE_TIMEOUT,
    ExecutionStatus.INFRASTRUCTURE: ResultReason.INTERNAL_ERROR,
}


def judge(submission: Submission, execution: Execution) -> SubmissionResult:
    """Convert an execution to code-judge's result."""
    expected, stdout = submission.expected_output, execution.stdout
    if execution.status is ExecutionStatus.TIMEOUT:
        stdout += TIMEOUT_NOTE
    is_as_expected = expected is None or stdout.strip() == expected.strip()
    return SubmissionResult(
        sub_id=submission.sub_id or str(uuid.uuid4()),
        success=execution.ok and is_as_expected,
        run_success=execution.ok,
        cost=execution.wall_s,
        stdout=None if execution.status.is_sandbox_fault else stdout[:MAX_OUTPUT_CHARS],
        stderr=None if execution.status.is_sandbox_fault else execution.stderr[:MAX_OUTPUT_CHARS],
        reason=_REASONS.get(execution.status, ResultReason.UNSPECIFIED),
    )


def refuse_language(submission: Submission) -> SubmissionResult:
    message = f"type {submission.type!r} cannot be run here: this service runs only 'python'"
    sub_id = submission.sub_id or str(uuid.uuid4())
    return SubmissionResult(sub_id, False, False, 0.0, ResultReason.INVALID_INPUT, stdout="", stderr=message)


class CodeJudgeApi:
    def __init__(self, service: Service) -> None:
        self._service = service

    def operations(self) -> list[Operation]:
        """The operations at the root, where `/status` is the service's own, and all of them again under `/code-judge`,
        because code-judge's example clients refuse a status with unknown fields."""
        post, get = partial(Operation, "POST", tag="code-judge"), partial(Operation, "GET", tag="code-judge")
        ordered = "In the order of the request."
        ran, judged = (ApiAnswer(ordered, SUBMISSION_RESULT),), (ApiAnswer(ordered, JUDGE_RESULT),)
        all_ran, all_judged = (ApiAnswer(ordered, BATCH_SUBMISSION_RESULT),), (ApiAnswer(ordered, BATCH_JUDGE_RESULT),)
        run, judge, alive = (
            "Run a submission.",
            "Run a submission, without its output.",
            (ApiAnswer("It is alive.", PONG),),
        )
        load = (ApiAnswer("Queue and workers.", SERVER_STATUS),)
        operations = [get("/code-judge/status", self.status, "Load.", load)]
        for prefix in ("", "/code-judge"):
            operations += [
                post(f"{prefix}/run", self.run, run, ran, SUBMISSION),
                post(f"{prefix}/judge", self.judge, judge, judged, SUBMISSION),
                get(f"{prefix}/ping", self.ping, "Liveness.", alive),
            ]
            for batch, how in (("batch", ""), ("long-batch", ", with a long queue timeout")):
                run_many, judge_many = f"Run many{how}.", f"Run many without output{how}."
                operations += [
                    post(f"{prefix}/run/{batch}", self.run_batch, run_many, all_ran, BATCH_SUBMISSION),
                    post(f"{prefix}/judge/{batch}", self.judge_batch, judge_many, all_judged, BATCH_SUBMISSION),
                ]
        return operations

    async def run(self, request: web.Request) -> web.Response:
        return json_response(SUBMISSION_RESULT.dump_json(await self._run_one(request)))

    async def judge(self, request: web.Request) -> web.Response:
        return json_response(JUDGE_RESULT.dump_json((await self._run_one(request)).without_output()))

    async def run_batch(self, request: web.Request) -> web.Response:
        return json_response(BATCH_SUBMISSION_RESULT.dump_json(await self._run_many(request)))

    async def judge_batch(self, request: web.Request) -> web.Response:
        batch = await self._run_many(request)
        judged = BatchJudgeResult(batch.sub_id, [result.without_output() for result in batch.results])
        return json_response(BATCH_JUDGE_RESULT.dump_json(judged))

    async def ping(self, _: web.Request) -> web.Response:
        return json_response(PONG.dump_json("pong"))

    async def status(self, _: web.Request) -> web.Response:
        load = self._service.load()
        return json_response(SERVER_STATUS.dump_json(ServerStatus(load.num_queued, load.num_slots)))

    async def _run_one(self, request: web.Request) -> SubmissionResult:
        submission = await read_body(self._service, request, SUBMISSION)
        with self._service.admitted():
            return await self._judge_one(submission, QUEUE_S)

    async def _run_many(self, request: web.Request) -> BatchSubmissionResult:
        batch = await read_body(self._service, request, BATCH_SUBMISSION)
        queue_s = LONG_QUEUE_S if request.path.endswith("/long-batch") else QUEUE_S
        with self._service.admitted(len(batch.submissions)):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._judge_one(submission, queue_s)) for submission in batch.submissions]
        return BatchSubmissionResult(batch.sub_id or str(uuid.uuid4()), [task.result() for task in tasks])

    async def _judge_one(self, submission: Submission, queue_s: float) -> SubmissionResult:
        if submission.type != "python":
            return refuse_language(submission)
        to_run = Request(submission.solution, submission.input or "", queue_s=queue_s)
        return judge(submission, await self._service.run_when_possible(to_run))
