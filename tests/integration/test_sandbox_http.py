"""Every native endpoint, against a real executor."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from sandbox_service import EqualityGrader, GateExecutor, Running, service, service_on_thread

from rstar2.sandbox.http import Load

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with service_on_thread(
        grader=EqualityGrader(),
        guarantees=lambda: [{"name": "network", "holds": True}],
        load=lambda: Load(num_slots=4, num_busy_slots=1, num_queued=2),
    ) as found:
        yield found


async def post(http: aiohttp.ClientSession, path: str, body: Any, expected: int = 200) -> Any:
    async with http.post(path, json=body) as response:
        assert response.status == expected, await response.text()
        return await response.json()


async def test_run_gives_everything_an_execution_has(http: aiohttp.ClientSession) -> None:
    result = await post(http, "/v1/run", {"code": "print(input())\n40 + 2", "stdin": "hi"})
    assert (result["status"], result["stdout"], result["value"], result["exit_code"]) == ("ok", "hi\n", "42", 0)
    assert result["wall_s"] > 0
    failed = await post(http, "/v1/run", {"code": "x = 1\n1/0"})
    assert failed["status"] == "error" and "line 2" in failed["stderr"]


async def test_limits_are_passed_on(http: aiohttp.ClientSession) -> None:
    slow = await post(http, "/v1/run", {"code": "print(1, flush=True)\nwhile 1: pass", "limits": {"wall_s": 0.3}})
    assert (slow["status"], slow["stdout"]) == ("timeout", "1\n")
    loud = await post(http, "/v1/run", {"code": "while 1: print('x' * 999)", "limits": {"output_bytes": 5000}})
    assert loud["status"] == "output_limit" and loud["stdout_cut"]


async def test_what_a_program_prints_can_always_be_sent(http: aiohttp.ClientSession) -> None:
    code = "import sys\nsys.stdout.buffer.write(b'\\xff\\x00\\xfe')\nsys.stdout.flush()\nchr(0xd800)"
    result = await post(http, "/v1/run", {"code": code})
    assert result["stdout"] == "\ufffd\x00\ufffd" and result["value"]


async def test_batch_streams_before_its_slowest_ends(http: aiohttp.ClientSession) -> None:
    runs = [{"code": "print(1)"}, {"code": "1/0"}]
    async with http.post("/v1/batch", json={"runs": runs}) as response:
        assert response.status == 200 and response.content_type == "application/x-ndjson"
        lines = [json.loads(line) async for line in response.content]
    assert {line["index"]: line["result"]["status"] for line in lines} == {0: "ok", 1: "error"}
    slow = {"code": "import time; time.sleep(40)", "limits": {"wall_s": 50}}
    async with http.post("/v1/batch", json={"runs": [slow, *runs]}) as response:
        lines = [json.loads(await response.content.readline()) for _ in runs]
    assert {line["index"]: line["result"]["status"] for line in lines} == {1: "ok", 2: "error"}


async def test_a_session_keeps_state_forks_and_rolls_back(http: aiohttp.ClientSession) -> None:
    session = await post(http, "/v1/sessions", {}, 201)
    path = f"/v1/sessions/{session['id']}"
    assert (await post(http, f"{path}/cells", {"code": "a = 1"}))["num_cells"] == 1
    assert (await post(http, f"{path}/cells", {"code": "a += 1; a"}))["num_cells"] == 2
    fork = await post(http, f"{path}/fork", {}, 201)
    assert fork["id"] != session["id"] and fork["num_cells"] == 2
    changed = await post(http, f"/v1/sessions/{fork['id']}/cells", {"code": "a = 10\na"})
    assert changed["result"]["value"] == "10"
    assert (await post(http, f"{path}/rollback", {"num_cells": 1}))["num_cells"] == 1
    assert (await post(http, f"{path}/cells", {"code": "a"}))["result"]["value"] == "1"
    refused = await post(http, f"{path}/rollback", {"num_cells": 9}, 409)
    assert refused["message"].startswith("num_cells:")
    async with http.get(path) as response:
        assert await response.json() == {"id": session["id"], "num_cells": 2}
    async with http.delete(path) as response:
        assert response.status == 204
    async with http.get(path) as response:
        assert response.status == 404 and (await response.json())["error"] == "no_session"
    await post(http, f"{path}/cells", {"code": "a"}, 404)


async def test_a_crashed_cell_leaves_the_state_before_it(http: aiohttp.ClientSession) -> None:
    path = f"/v1/sessions/{(await post(http, '/v1/sessions', {}, 201))['id']}/cells"
    await post(http, path, {"code": "a = 1"})
    crashed = await post(http, path, {"code": "a = 2\nimport os\nos.kill(os.getpid(), 9)"})
    assert crashed["num_cells"] == 1 and crashed["result"]["status"] in ("signal", "memory")
    assert (await post(http, path, {"code": "a"}))["result"]["value"] == "1"


async def test_empty_bodies_where_nothing_must_be_said(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/sessions") as response:
        session = await response.json()
    async with http.post(f"/v1/sessions/{session['id']}/fork") as response:
        assert response.status == 201
    async with http.post("/v1/run") as response:
        assert response.status == 400


async def test_grading(http: aiohttp.ClientSession) -> None:
    right = await post(http, "/v1/grade", {"answer": "42", "gold": "42"})
    assert right == {"verdict": "right", "answer": "42", "method": "text", "message": ""}
    assert (await post(http, "/v1/grade", {"text": "so it is 41", "gold": "42"}))["verdict"] == "wrong"
    for body in ({"gold": "1"}, {"gold": "1", "answer": "1", "text": "1"}, {"answer": "1"}):
        await post(http, "/v1/grade", body, 422)
    for answer in ("break", "away"):
        assert (await post(http, "/v1/grade", {"answer": answer, "gold": "1"}, 503))["error"] == "infrastructure"


async def test_without_a_grader_there_is_no_grading() -> None:
    async with service(GateExecutor()) as running, aiohttp.ClientSession(running.url) as http:
        await post(http, "/v1/grade", {"answer": "42", "gold": "42"}, 404)


async def test_status_health_and_metrics(http: aiohttp.ClientSession) -> None:
    await post(http, "/v1/run", {"code": "1/0"})
    async with http.get("/status") as response:
        status = await response.json()
    num_errors = status["executions"]["error"]
    assert status["guarantees"] == [{"name": "network", "holds": True}]
    assert (status["queue"], status["num_workers"], status["status"]) == (2, 4, "ready")
    async with http.get("/healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ready"})
    async with http.get("/metrics") as response:
        text = await response.text()
    assert f'rstar2_sandbox_executions_total{{status="error"}} {num_errors}\n' in text
    assert "rstar2_sandbox_queue_depth 2\n" in text


async def test_openapi_lists_every_route(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as response:
        document = await response.json()
    assert document["openapi"] == "3.1.0"
    for path in ("/v1/run", "/v1/batch", "/run/long-batch", "/run_jupyter", "/v1/sessions/{session_id}/cells"):
        assert "422" in document["paths"][path]["post"]["responses"]
    assert json.dumps(document).count('"$ref": "#/$defs') == 0


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"{", 400, "JSON"),
        (b'"\xff"', 400, "JSON"),
        (b"[]", 422, "body"),
        (b"{}", 422, "code"),
        (b'{"code": 1}', 422, "code"),
        (b'{"code": "", "cod": ""}', 422, "cod"),
        (b'{"code": "", "limits": {"wall_s": "1"}}', 422, "limits.wall_s"),
        (b'{"code": "", "limits": {"wall_s": -1}}', 422, "limits.wall_s"),
        (b'{"code": "", "limits": {"wall_s": NaN}}', 422, "limits.wall_s"),
        (b'{"code": "", "queue_s": 1e300}', 422, "queue_s"),
        (b'{"code": "", "idempotency_key": ""}', 422, "idempotency_key"),
        (b'{"code": "\\ud800"}', 400, "JSON"),
    ],
)
async def test_a_bad_request_names_what_is_wrong(
    http: aiohttp.ClientSession, body: bytes, status: int, named: str
) -> None:
    async with http.post("/v1/run", data=body, headers={"Content-Type": "application/json"}) as response:
        found = await response.json()
        assert response.status == status and named in found["message"]


async def test_unknown_paths_and_methods(http: aiohttp.ClientSession) -> None:
    async with http.get("/v2/run") as response:
        assert response.status == 404 and (await response.json())["error"] == "not_found"
    async with http.put("/v1/run") as response:
        assert response.status == 405 and response.headers["Allow"] == "POST"
