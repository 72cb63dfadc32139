"""The viewer over HTTP: what it answers, whom it refuses, and how little it reads."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from web_runs import answering_turn, create, make_group, make_trace, write_small_run

from rstar2.records import RunDirectory, Selection, Verdict
from rstar2.records.codec import encode
from rstar2.records.run_layout import RunLayout, segment
from rstar2.web.run_reader import RunReader, open_runs
from rstar2.web.segment_index import BLOCK_BYTES
from rstar2.web.server import create_app
from rstar2.web.step_reader import PARSE_BYTES

pytestmark = pytest.mark.integration

Client = TestClient[Any, Any]


@asynccontextmanager
async def viewing(readers: Sequence[RunReader], playground: Any = None) -> AsyncIterator[Client]:
    async with TestClient(TestServer(create_app(readers, playground=playground))) as client:
        yield client


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_small_run(tmp_path / "small")
    return tmp_path / "small"


async def get(client: Client, path: str, status: int = 200, **headers: str) -> Any:
    async with client.get(path, headers=headers) as response:
        assert response.status == status, await response.text()
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return await response.json()


async def test_everything_about_a_small_run(run: Path) -> None:
    async with viewing(open_runs([run])) as client:
        listing = await get(client, "/api/runs")
        assert [(item["key"], item["status"], item["seed"]) for item in listing["runs"]] == [("small", "finished", 3)]
        assert listing["models"] == []
        metrics = await get(client, "/api/runs/small/metrics")
        assert [(row[0], row[1]) for row in metrics["rows"]] == [(1, "one"), (2, "two"), (2, "eval:two/aime24")]
        assert ["my own", 3.0] in metrics["rows"][0][3]
        assert (await get(client, "/api/runs/small/recipe"))["toml"] == 'name = "by-hand"\n'
        assert [row[1] for row in (await get(client, "/api/runs/small/events"))["rows"]] == ["started", "finished"]
        steps = await get(client, "/api/runs/small/steps")
        assert [step for step, _ in steps["traces"]] == [1, 2, 3]
        assert steps["schedule"] == [2]

        problems = await get(client, "/api/runs/small/steps/2/problems")
        assert [(row["num_right"], row["num_kept"], row["num_rollouts"]) for row in problems["rows"]] == [(2, 2, 4)]
        early = await get(client, "/api/runs/small/steps/1/problems")
        assert early["rows"] == [{"problem_id": "p0", "question": "What is 7^2025 modulo 1000?", "num_rollouts": 1}]
        late = await get(client, "/api/runs/small/steps/3/problems")
        assert [(row["problem_id"], row.get("is_dropped")) for row in late["rows"]] == [
            ("p0", True),
            ("held-out", None),
        ]
        evaluated = await get(client, "/api/runs/small/steps/3/rollouts?flags=evaluation")
        assert [(row["id"], row["stage"]) for row in evaluated["rows"]] == [("t-eval", "eval:two")]
        rollouts = await get(client, "/api/runs/small/steps/2/rollouts?flags=wrong,kept")
        assert [row["id"] for row in rollouts["rows"]] == ["t2"]
        searched = await get(client, "/api/runs/small/steps/2/rollouts?text=a+GUESS")
        assert [row["id"] for row in searched["rows"]] == ["t2"]

        side = await get(client, "/api/runs/small/steps/2/side-by-side?group=0")
        assert [item["id"] for item in side["rollouts"]] == ["t0", "t1", "t2", "t3"]
        assert side["rollouts"][1]["why"].startswith("Left out by resampling")
        assert (await get(client, "/api/runs/small/steps/2/side-by-side?problem=p0"))["num_rollouts"] == 4

        at = rollouts["rows"][0]["at"]
        trace = await get(client, f"/api/runs/small/steps/2/traces/{at}")
        assert trace["id"] == "t2"
        assert trace["turns"][0]["cells"][0] == {"kind": "reason", "text": "A guess."}
        assert trace["turns"][0]["tokens"]["entropies"] == [0.1] * 4

        calls = await get(client, "/api/runs/small/steps/2/tool-calls")
        assert {row["status"]: row["count"] for row in calls["statuses"]} == {"ok": 1, "raised": 1}
        schedule = await get(client, "/api/runs/small/steps/2/schedule")
        assert [engine["engine"] for engine in schedule["engines"]] == ["e0", "e1"]
        assert schedule["engines"][0]["turns"][0] == 4.0
        assert schedule["critical_path"][1] == ["generating", 1.0, 4.0, "e1"]


async def test_what_is_not_there_is_said_in_a_sentence(run: Path) -> None:
    async with viewing(open_runs([run])) as client:
        for path in (
            "/api/runs/other/metrics",
            "/api/runs/small/steps/7/rollouts",
            "/api/runs/small/steps/x/rollouts",
            "/api/runs/small/steps/2/rollouts?after=-1",
            "/api/runs/small/steps/2/traces/3",
            "/api/runs/small/steps/2/traces/99999999999999999999",
            "/api/runs/small/steps/2/side-by-side?group=9",
            "/api/runs/small/steps/1/schedule",
            "/v1/chat/completions",
        ):
            assert (await get(client, path, 404))["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../etc/passwd",
        "/api/runs/..%2f..%2fetc/metrics",
        "/api/runs/small/steps/..%2f..%2frun.json/rollouts",
        "/api/runs/small/steps/2/traces/..%2f..%2frun.json",
        "/main.js%00.html",
        "/__init__.py",
        "/demo_run.zip",
    ],
)
async def test_no_path_leads_out(run: Path, path: str) -> None:
    async with viewing(open_runs([run])) as client:
        # Written by hand, because a client tidies its addresses.
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nConnection: close\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.split()[1] in ("400", "404")
    assert "root:" not in answer


async def test_other_names_and_other_sites_are_refused(run: Path) -> None:
    async with viewing(open_runs([run])) as client:
        assert "open it by its address" in (await get(client, "/api/runs", 403, Host="evil.example"))["message"]
        assert await get(client, "/", 403, Host="evil.example")
        async with client.post("/api/runs/small/metrics", headers={"Origin": "http://evil.example"}) as response:
            assert response.status == 403
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            async with client.request(method, "/api/runs") as response:
                assert response.status == 405


async def test_the_page_and_its_files_are_served(run: Path) -> None:
    async with viewing(open_runs([run])) as client:
        for path, content_type in (("/", "text/html"), ("/main.js", "text/javascript"), ("/style.css", "text/css")):
            async with client.get(path) as response:
                assert response.status == 200
                assert response.content_type == content_type


def write_huge_run(path: Path) -> int:
    """500 steps, three of them large; returns the size of one large step."""
    with create(path) as run:
        for step in range(1, 501):
            run.write_metrics(step, "rl", {"reward_mean": step / 500})
    num_tokens = 5000
    turn = answering_turn("807", "so " * num_tokens, num_tokens)
    template = encode(make_trace("TRACE-ID", turns=[turn, turn], verdict=Verdict.RIGHT))
    layout = RunLayout(path)
    for step in range(1, 501):
        num_rollouts = 200 if step in (1, 250, 500) else 1
        lines = (template.replace(b"TRACE-ID", b"t%d-%d" % (step, n)) for n in range(num_rollouts))
        with segment(layout.traces, step).open("wb") as file:
            file.writelines(line + b"\n" for line in (lines if num_rollouts > 1 else [encode(make_trace("t"))]))
    return segment(layout.traces, 500).stat().st_size


async def test_a_huge_run_is_opened_by_parts(tmp_path: Path) -> None:
    step_bytes = write_huge_run(tmp_path / "huge")
    assert step_bytes > 3 * (PARSE_BYTES // 2)
    [reader] = open_runs([tmp_path / "huge"])

    async def cost(client: Client, path: str) -> tuple[Any, int]:
        before = reader.num_bytes_read
        answer = await get(client, path)
        return answer, reader.num_bytes_read - before

    async with viewing([reader]) as client:
        steps, num_bytes = await cost(client, "/api/runs/huge/steps")
        assert len(steps["traces"]) == 500
        assert num_bytes == 0
        metrics, num_bytes = await cost(client, "/api/runs/huge/metrics")
        assert metrics["is_end"]
        assert num_bytes < 100_000
        first, num_bytes = await cost(client, "/api/runs/huge/steps/500/rollouts")
        assert first["rows"][0]["id"] == "t500-0"
        assert not first["is_end"]
        assert len(first["rows"]) < 200
        assert num_bytes < PARSE_BYTES * 2 + 4 * BLOCK_BYTES
        second, num_bytes = await cost(client, f"/api/runs/huge/steps/500/rollouts?after={first['next']}")
        assert second["rows"][0]["id"] == f"t500-{first['next']}"
        assert num_bytes < PARSE_BYTES * 2 + 4 * BLOCK_BYTES
        # A link deep into a step reads that trace, and at most one more block of the index.
        deep = second["rows"][0]["at"]
        trace, num_bytes = await cost(client, f"/api/runs/huge/steps/500/traces/{deep}")
        assert trace["id"] == second["rows"][0]["id"]
        assert num_bytes < BLOCK_BYTES + 2 * step_bytes // 200
    fresh = RunReader(tmp_path / "huge", "huge")
    fresh.trace(500, deep)
    assert fresh.num_bytes_read < BLOCK_BYTES + 2 * step_bytes // 200


async def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    run: RunDirectory
    with create(tmp_path / "live") as run:
        run.write_metrics(1, "rl", {"reward_mean": 0.5})
        run.write_trace(make_trace("t0"))
        async with viewing(open_runs([tmp_path / "live"])) as client:
            assert (await get(client, "/api/runs"))["runs"][0]["status"] == "running"
            metrics = await get(client, "/api/runs/live/metrics")
            rollouts = await get(client, "/api/runs/live/steps/1/rollouts")
            assert rollouts["is_end"]
            run.write_metrics(2, "rl", {"reward_mean": 0.75})
            run.write_trace(make_trace("t1"))
            with segment(run.layout.traces, 1).open("ab") as file:
                file.write(b'{"id":"half')
            new = await get(client, f"/api/runs/live/metrics?from={metrics['next']}")
            assert [row[0] for row in new["rows"]] == [2]
            more = await get(client, f"/api/runs/live/steps/1/rollouts?after={rollouts['next']}")
            assert [row["id"] for row in more["rows"]] == ["t1"]


async def test_runs_of_one_name_have_keys_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_small_run(tmp_path / folder / "same")
    readers = open_runs([tmp_path / "a" / "same", tmp_path / "b" / "same"])
    assert [reader.key for reader in readers] == ["same", "same~2"]


class SlowPlayground:
    """Says one thing, and the other when it may."""

    models = ("slow", "other")

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.was_left = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.was_left.set()
            raise
        await response.write(b"two\n")
        return response


async def test_the_playground_streams_behind_the_guard(run: Path) -> None:
    playground = SlowPlayground()
    async with viewing(open_runs([run]), playground) as client:
        assert (await get(client, "/api/runs"))["models"] == ["slow", "other"]
        response = await client.post("/v1/chat/completions", json={})
        assert await response.content.readline() == b"one\n"
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'")
        playground.go_on.set()
        assert await response.content.readline() == b"two\n"
        foreign = {"Origin": "http://elsewhere.example"}
        assert (await client.post("/v1/chat/completions", json={}, headers=foreign)).status == 403


async def test_a_reader_who_leaves_ends_the_answer(run: Path) -> None:
    playground = SlowPlayground()
    server = TestServer(create_app(open_runs([run]), playground=playground), handler_cancellation=True)
    async with TestClient(server) as client:
        response = await client.post("/v1/chat/completions", json={})
        await response.content.readline()
        response.close()
        async with asyncio.timeout(240):
            await playground.was_left.wait()


def test_a_report_of_a_huge_run_stays_small(tmp_path: Path) -> None:
    from rstar2.web import render_report

    write_huge_run(tmp_path / "huge")
    html = render_report(tmp_path / "huge")
    assert 100_000 < len(html) < 16_000_000
    data = json.loads(html.partition('id="data">')[2].partition("</script>")[0])
    [about] = data["runs"]
    assert len(about["metrics"]["rows"]) == 500
    assert about["num_steps"] == 500
    held = [step for step, _ in about["step"]]
    assert (held[0], held[-1]) == (1, 500)
    assert about["step"][0][1]["is_sampled"]


def test_problems_are_listed_with_what_they_ask(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        grouped = [make_trace(f"g{n}", problem_id="in a group", question='Say "7".', sample_index=n) for n in range(2)]
        alone = make_trace("e", problem_id="alone", question="A long one. " * 100)
        endless = make_trace("x", problem_id="endless", question="?", prompt_ids=tuple(range(20_000)))
        for trace in (*grouped, alone, endless):
            run.write_trace(trace)
        run.write_group(make_group("g", 1, grouped, [Selection.KEPT] * 2))
    rows = RunReader(tmp_path / "run", "run").problems(1, 0)["rows"]
    assert [row["problem_id"] for row in rows] == ["in a group", "alone", "endless"]
    assert rows[0]["question"] == 'Say "7".'
    assert rows[1]["question"].startswith("A long one. ") and len(rows[1]["question"]) < 250
    assert rows[2]["question"] is None, "its prompt is beyond what is read of a line"
    assert RunReader(tmp_path / "run", "run").problems(1, 1)["rows"] == rows[1:]
