"""The public callers of code-judge and SandboxFusion, transcribed: same bodies, same parsing, pointed here.

code-judge: its `judge_client.py`, and the tool calls of rStar2-Agent's release. SandboxFusion: its Python client's
models, and the reward client of verl.
"""

import asyncio
import base64
import json
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import pytest
import requests
from sandbox_service import Running, service_on_thread

from rstar2.sandbox.http import ServiceSettings

pytestmark = pytest.mark.integration


@dataclass
class Submission:
    """As in judge_client.py: sent with asdict, so absent fields are nulls."""

    sub_id: str | None
    type: str
    solution: str
    input: str | None = None
    expected_output: str | None = None


@dataclass
class SubmissionResult:
    """As in judge_client.py: made with **, so a field too many is an error."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    stdout: str | None = None
    stderr: str | None = None
    reason: str = ""


@dataclass
class ServerStatus:
    queue: int
    num_workers: int


def judge_batch(url: str, submissions: list[Submission]) -> list[SubmissionResult]:
    body: dict[str, Any] = {"type": "batch", "submissions": [asdict(submission) for submission in submissions]}
    response = requests.post(f"{url}/run/long-batch", json=body, timeout=240)
    response.raise_for_status()
    return [SubmissionResult(**result) for result in response.json()["results"]]


def test_code_judges_client(running: Running) -> None:
    submissions = [
        Submission("a", "python", "print(input())", "9", "9"),
        Submission("b", "python", "print(input())", "9", "8"),
        Submission("c", "python", "print(input())", "", None),
        Submission("d", "cpp", "int main(){}", None, None),
        Submission(None, "python", "import sys; sys.exit(3)"),
        Submission("f", "python", "print('x' * 5000)"),
    ]
    for url in (running.url, f"{running.url}/code-judge"):
        results = judge_batch(url, submissions)
        assert [result.sub_id for result in results][:4] == ["a", "b", "c", "d"] and results[4].sub_id
        assert [result.success for result in results] == [True, False, False, False, False, True]
        assert [result.run_success for result in results] == [True, True, False, False, False, True]
        assert [result.reason for result in results] == ["", "", "", "invalid_input", "", ""]
        assert "EOFError" in str(results[2].stderr) and "'cpp'" in str(results[3].stderr)
        assert len(str(results[5].stdout)) == 1000


def test_code_judges_status(running: Running) -> None:
    status = requests.get(f"{running.url}/code-judge/status", timeout=240)
    assert isinstance(ServerStatus(**status.json()).num_workers, int)
    both = requests.get(f"{running.url}/status", timeout=240).json()
    assert isinstance(both["queue"], int) and isinstance(both["num_workers"], int) and "guarantees" in both
    assert requests.get(f"{running.url}/ping", timeout=240).json() == "pong"


@pytest.mark.parametrize("kind", ["run", "judge"])
@pytest.mark.parametrize("batch", ["batch", "long-batch"])
def test_code_judges_endpoints(running: Running, kind: str, batch: str) -> None:
    submission = {"type": "python", "solution": "print(input())", "input": "a", "expected_output": " a "}
    one = requests.post(f"{running.url}/{kind}", json=submission, timeout=240).json()
    assert one["success"] and one["run_success"] and one["reason"] == "" and one["cost"] > 0
    assert ("stdout" in one) == ("stderr" in one) == (kind == "run")
    body: dict[str, Any] = {
        "type": "batch",
        "sub_id": "me",
        "submissions": [submission, {**submission, "expected_output": "b"}],
    }
    many = requests.post(f"{running.url}/{kind}/{batch}", json=body, timeout=240).json()
    assert many["sub_id"] == "me"
    assert [(result["success"], result["run_success"]) for result in many["results"]] == [(True, True), (False, True)]


def test_code_judge_refuses_as_it_does(running: Running) -> None:
    for body in ({"type": "ruby", "solution": ""}, {"type": "python"}, {"solution": ""}):
        response = requests.post(f"{running.url}/run", json=body, timeout=240)
        assert response.status_code == 422
        assert {"type", "loc", "msg"} <= response.json()["detail"][0].keys()
    response = requests.post(f"{running.url}/run/batch", json={"submissions": []}, timeout=240)
    assert response.status_code == 422


async def call_long_batch(url: str, submissions: list[dict[str, Any]], session: aiohttp.ClientSession) -> list[Any]:
    """The loop of rStar2-Agent's release: whatever timed out in the queue is asked for again."""
    results: list[Any] = [None] * len(submissions)
    sub_ids = list(range(len(submissions)))
    while sub_ids:
        data = {"type": "batch", "submissions": [submissions[sub_id] for sub_id in sub_ids]}
        async with session.post(url, json=data) as response:
            response.raise_for_status()
            answered = (await response.json())["results"]
        for sub_id, result in zip(sub_ids, answered, strict=True):
            if result["reason"] != "queue_timeout":
                results[sub_id] = result
        sub_ids = [sub_id for sub_id in sub_ids if results[sub_id] is None]
    return results


def tool_text(result: dict[str, Any]) -> str:
    parts = ["Tool call success"]
    if not (result["run_success"] and result["success"]):
        parts = ["Tool call failure", f"reason: {result['reason']}"]
    parts += [f"{name}: {result[name]}" for name in ("stdout", "stderr") if result[name]]
    return "\n".join([*parts, f"execution time: {result['cost']:.2f}s"])


CELL = """
import base64, os, sys
code = base64.b64decode("{}".encode()).decode()
scope = {{"__name__": "__main__"}}
try:
    exec(compile(code, "<string>", "exec"), scope)
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
    os._exit(1)
"""


async def test_rstar2_agents_tool_calls(running: Running) -> None:
    programs = ["print(6 * 7)", "1/0"]
    submissions = [
        {"type": "python", "solution": CELL.format(base64.b64encode(code.encode()).decode()), "input": None}
        for code in programs
    ]
    connector = aiohttp.TCPConnector(limit=32, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        results = await call_long_batch(f"{running.url}/run/long-batch", submissions, session)
    texts = [tool_text(result) for result in results]
    assert texts[0].startswith("Tool call success\nstdout: 42\n\nexecution time: ")
    assert texts[1].startswith("Tool call failure\nreason: \nstderr: ZeroDivisionError: division by zero\n")


def call_sandbox_api(url: str, code: str, stdin: str | None, timeout: float, language: str = "python") -> Any:
    """verl's request, field for field."""
    payload = json.dumps(
        {
            "compile_timeout": timeout,
            "run_timeout": timeout,
            "code": code,
            "stdin": stdin,
            "memory_limit_MB": 1024,
            "language": language,
            "files": {},
            "fetch_files": [],
        }
    )
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    response = requests.post(f"{url}/run_code", headers=headers, data=payload, timeout=timeout * 2 + 10)
    response.raise_for_status()
    return response.json()


def verl_status(answer: dict[str, Any]) -> str:
    """How verl tells the outcomes of a program apart."""
    if answer.get("status") == "SandboxError":
        return "sandbox_error"
    run = answer["run_result"]
    if answer.get("status") == "Failed":
        assert answer.get("compile_result") is None
        if run.get("status") == "TimeLimitExceeded":
            return "timeout"
        assert run.get("status") == "Error" or (run.get("status") == "Finished" and run.get("return_code") != 0)
        return "runtime_error"
    assert answer.get("status") == "Success"
    return "success"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(input())", "success"),
        ("raise SystemExit(2)", "runtime_error"),
        ("import os\nos.kill(os.getpid(), 6)", "runtime_error"),
        ("while True: pass", "timeout"),
    ],
)
def test_verls_reward_client(running: Running, code: str, expected: str) -> None:
    answer = call_sandbox_api(running.url, code, "hello", timeout=1)
    assert verl_status(answer) == expected
    assert answer["run_result"].keys() == {"status", "execution_time", "return_code", "stdout", "stderr"}
    if expected == "success":
        assert answer["run_result"]["stdout"] + answer["run_result"]["stderr"] == "hello\n"


def test_sandbox_fusion_refuses_other_languages_in_its_own_words(running: Running) -> None:
    answer = call_sandbox_api(running.url, "int main(){}", None, 1, language="cpp")
    assert answer.keys() == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    assert answer["status"] == "SandboxError" and "'cpp'" in answer["message"]
    response = requests.post(f"{running.url}/run_code", json={"code": "", "language": "klingon"}, timeout=240)
    assert response.status_code == 422


def test_sandbox_fusion_files(running: Running) -> None:
    body: dict[str, Any] = {
        "code": "open('out.bin', 'wb').write(open('in/a.txt', 'rb').read() * 2)\nprint('done')\n1/0",
        "language": "python",
        "files": {"in/a.txt": base64.b64encode(b"x\0y").decode(), "skipped": None},
        "fetch_files": ["out.bin", "nowhere"],
    }
    answer = requests.post(f"{running.url}/run_code", json=body, timeout=240).json()
    assert answer["status"] == "Failed" and answer["run_result"]["stdout"] == "done\n"
    assert {name: base64.b64decode(data) for name, data in answer["files"].items()} == {"out.bin": b"x\0yx\0y"}
    assert 'File "main.py", line 3' in answer["run_result"]["stderr"]
    broken = requests.post(f"{running.url}/run_code", json={**body, "files": {"a": "x"}}, timeout=240).json()
    assert broken["status"] == "SandboxError" and "base64" in broken["message"]


def test_run_jupyter_as_sandbox_fusions_own_tests(running: Running) -> None:
    cells = ['a = "hello"', "a", "print(a)", 'import sys\nsys.stderr.write("oh\\n");', "assert False, 'no'", "print(a)"]
    body: dict[str, Any] = {
        "cells": cells,
        "cell_timeout": 0,
        "total_timeout": 45,
        "kernel": "python3",
        "files": {"given": base64.b64encode(b"1").decode()},
        "fetch_files": ["given"],
    }
    answer = requests.post(f"{running.url}/run_jupyter", json=body, timeout=240).json()
    assert answer.keys() == {"status", "message", "driver", "cells", "executor_pod_name", "files"}
    assert answer["status"] == "Success" and answer["driver"]["status"] == "Finished"
    results = answer["cells"]
    assert results[0] == {"stdout": "", "stderr": "", "display": [], "error": []}
    assert results[1]["display"][0]["text/plain"] == "'hello'"
    assert results[2]["stdout"] == "hello\n"
    assert results[3]["stderr"] == "oh\n"
    assert results[4]["error"][0]["ename"] == "AssertionError" and results[4]["error"][0]["evalue"] == "no"
    assert results[5]["stdout"] == "hello\n"
    assert base64.b64decode(answer["files"]["given"]) == b"1"


def test_run_jupyter_stops_at_its_total_time(running: Running) -> None:
    body: dict[str, Any] = {"cells": ["a = 1", "while True: pass", "a"], "total_timeout": 1}
    answer = requests.post(f"{running.url}/run_jupyter", json=body, timeout=240).json()
    assert answer["status"] == "Failed" and answer["driver"]["status"] == "TimeLimitExceeded"
    body = {"cells": ["a = 1", "while True: pass", "a"], "cell_timeout": 0.5}
    answer = requests.post(f"{running.url}/run_jupyter", json=body, timeout=240).json()
    assert answer["status"] == "Success" and answer["cells"][1]["error"][0]["ename"] == "CellTimeout"
    assert answer["cells"][2]["display"] == [{"text/plain": "1"}]


async def test_callers_of_both_kinds_at_once(http: aiohttp.ClientSession) -> None:
    async def one(index: int) -> str:
        if index % 2:
            async with http.post("/run_code", json={"code": f"print({index})", "language": "python"}) as response:
                return str((await response.json())["run_result"]["stdout"])
        async with http.post("/run", json={"type": "python", "solution": f"print({index})"}) as response:
            return str((await response.json())["stdout"])

    assert await asyncio.gather(*map(one, range(16))) == [f"{index}\n" for index in range(16)]


def test_clients_that_know_nothing_but_a_url_bring_the_token_in_it() -> None:
    batch = {"type": "batch", "submissions": [asdict(Submission(None, "python", "print(42)"))]}

    async def ask(url: str) -> Any:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/run/long-batch", json=batch) as response:
            return await response.json()

    with service_on_thread(ServiceSettings(token="s3cret")) as running:
        url = running.url.replace("http://", "http://:s3cret@")
        answer = requests.post(f"{url}/run/long-batch", json=batch, timeout=240)
        assert answer.json()["results"][0]["stdout"] == "42\n"
        assert asyncio.run(ask(url))["results"][0]["success"]
        assert call_sandbox_api(url, "print(input())", "x", 5)["run_result"]["stdout"] == "x\n"
        assert requests.post(f"{running.url}/run/long-batch", json=batch, timeout=240).status_code == 401
