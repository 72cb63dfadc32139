"""The viewer reads steps by parts: what it finds, what it says it has not found yet, and what it reads for that."""

from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.records import Outcome, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn, Verdict
from rstar2.records.codec import encode
from rstar2.web import step_reader
from rstar2.web.segment_index import SegmentIndex
from rstar2.web.step_reader import Query, StepReader

pytestmark = pytest.mark.unit


def trace(number: int, *, verdict: Verdict = Verdict.RIGHT, text: str = "so", num_errors: int = 0) -> Trace:
    results = (ToolResult(ToolStatus.RAISED, "x"),) * num_errors
    calls = (ToolCall(raw="{}"),) * num_errors
    turn = Turn((1, 2), (-0.5, -0.25), text, StopReason.END_OF_TURN, calls=calls, results=results)
    return Trace(f"t{number}", f"p{number % 2}", (1,), "prompt", (turn,), Outcome.ANSWERED, verdict=verdict)


def write(path: Path, traces: list[Trace], tail: bytes = b"") -> None:
    path.write_bytes(b"".join(encode(item) + b"\n" for item in traces) + tail)


def reader(folder: Path, traces: list[Trace], tail: bytes = b"") -> StepReader:
    write(folder / "traces", traces, tail)
    found = StepReader(folder / "traces", folder / "groups")
    found.refresh()
    return found


def test_the_index_finds_whole_lines_and_their_ids(tmp_path: Path) -> None:
    write(tmp_path / "s", [trace(n) for n in range(5)], tail=b'{"id":"torn')
    index = SegmentIndex(tmp_path / "s")
    index.extend()
    assert [entry.id for entry in index.entries] == [f"t{n}" for n in range(5)]
    assert [entry.problem_id for entry in index.entries] == ["p0", "p1", "p0", "p1", "p0"]
    assert [index.trace_at(entry.start).id for entry in index.entries] == [f"t{n}" for n in range(5)]
    assert index.is_complete


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_the_index_is_the_same_in_pieces_of_any_size(tmp_path: Path, piece: int) -> None:
    write(tmp_path / "s", [trace(n, text="x" * 50 * n) for n in range(4)])
    whole, parts = SegmentIndex(tmp_path / "s"), SegmentIndex(tmp_path / "s")
    whole.extend()
    while not parts.is_complete:
        parts.extend(piece)
    assert parts.entries == whole.entries


def test_a_torn_tail_that_is_cut_off_and_written_anew_is_read_as_it_is_then(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write(path, [trace(0)], tail=b'{"id":"was torn by a kill')
    index = SegmentIndex(path)
    index.extend()
    write(path, [trace(0), trace(1), trace(2)])
    index.extend()
    assert [entry.id for entry in index.entries] == ["t0", "t1", "t2"]


def test_only_the_start_of_a_line_names_a_trace(tmp_path: Path) -> None:
    write(tmp_path / "s", [trace(0)])
    index = SegmentIndex(tmp_path / "s")
    for start in (1, 17, 10_000_000):
        with pytest.raises(UserError, match="no line that starts"):
            index.line_at(start)


def test_pages_follow_one_another_and_say_when_they_end(tmp_path: Path) -> None:
    step = reader(tmp_path, [trace(n) for n in range(7)])
    first = step.page(Query(), 0, 3)
    second = step.page(Query(), first.next, 3)
    third = step.page(Query(), second.next, 3)
    assert [row.summary.id for page in (first, second, third) for row in page.rows] == [f"t{n}" for n in range(7)]
    assert [page.is_end for page in (first, second, third)] == [False, False, True]


def test_filters_and_search(tmp_path: Path) -> None:
    traces = [trace(0), trace(1, verdict=Verdict.WRONG, num_errors=1), trace(2, verdict=Verdict.WRONG, text="Aha <b>")]
    step = reader(tmp_path, traces)

    def found(query: Query) -> list[str]:
        return [row.summary.id for row in step.page(query, 0, 10).rows]

    assert found(Query(frozenset({"wrong"}))) == ["t1", "t2"]
    assert found(Query(frozenset({"wrong", "tool_error"}))) == ["t1"]
    assert found(Query(frozenset({"no_tool"}))) == ["t0", "t2"]
    assert found(Query(text="aha <B>")) == ["t2"]
    assert found(Query(frozenset({"right"}), "aha")) == []


def test_a_page_ends_with_its_budget_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = reader(tmp_path, [trace(n, verdict=Verdict.WRONG if n == 19 else Verdict.RIGHT) for n in range(20)])
    size = step.index.entries[0].num_bytes
    monkeypatch.setattr(step_reader, "PARSE_BYTES", 5 * size)
    query, after, num_pages, found = Query(frozenset({"wrong"})), 0, 0, []
    while True:
        page = step.page(query, after, 10)
        num_pages += 1
        found += [row.summary.id for row in page.rows]
        after = page.next
        if page.is_end:
            break
    assert found == ["t19"]
    assert num_pages == 4


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    step = reader(tmp_path, [trace(0)])
    page = step.page(Query(), 0, 10)
    assert page.is_end
    write(tmp_path / "traces", [trace(0), trace(1)])
    step.refresh()
    assert [row.summary.id for row in step.page(Query(), page.next, 10).rows] == ["t1"]


def test_a_damaged_line_is_listed_with_its_reason(tmp_path: Path) -> None:
    step = reader(tmp_path, [trace(0)], tail=b'{"id":"broken","problem_id":"p","turns":7}\n')
    rows = step.page(Query(), 0, 10).rows
    assert [row.summary.outcome for row in rows] == ["answered", "unreadable"]
    assert "missing field" in rows[1].summary.unreadable
    assert rows[1].summary.id == "broken"


def test_listing_again_parses_nothing_again(tmp_path: Path) -> None:
    step = reader(tmp_path, [trace(n) for n in range(50)])
    step.page(Query(), 0, 50)
    before = step.num_bytes_read
    step.page(Query(), 0, 50)
    assert step.num_bytes_read == before
