"""Branches of a tree in a step's file, as the viewer reads them: one at a time, complete."""

from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.records import Outcome, StopReason, Trace, Turn
from rstar2.records.branches import stored
from rstar2.records.record_file import RecordWriter
from rstar2.web.step_reader import StepReader
from rstar2.web.trace_wire import trace_json

pytestmark = pytest.mark.unit

TURNS = tuple(Turn((number,), (-1.0,), f"turn {number}", StopReason.END_OF_TURN) for number in range(4))
ROOT = Trace("a", "p", (9,), "prompt", TURNS[:3], Outcome.ANSWERED, group_id="g", reward=1.0)
BRANCH = Trace(
    "b", "p", (9,), "prompt", (*TURNS[:1], TURNS[3]), Outcome.ANSWERED, group_id="g", parent="a", num_shared_turns=1
)
TWIG = Trace(
    "c", "p", (9,), "prompt", (*BRANCH.turns, TURNS[2]), Outcome.ANSWERED, group_id="g", parent="b", num_shared_turns=2
)


def write(path: Path, *traces: Trace) -> None:
    with RecordWriter[Trace](path) as writer:
        for trace in traces:
            writer.append(stored(trace))


def test_a_branch_of_a_branch_is_read_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "traces.jsonl", ROOT, BRANCH, TWIG)
    reader = StepReader(tmp_path / "traces.jsonl", tmp_path / "groups.jsonl")
    found, is_complete = reader.traces_of(["c", "a", "b"])
    assert [trace for _, trace in found] == [TWIG, ROOT, BRANCH] and is_complete
    assert reader.question_of("p", ["c", "a"]) is None, "a branch is stored without its question"


def test_a_branch_without_its_parent_is_unreadable_and_says_why(tmp_path: Path) -> None:
    write(tmp_path / "traces.jsonl", BRANCH)
    reader = StepReader(tmp_path / "traces.jsonl", tmp_path / "groups.jsonl")
    with pytest.raises(UserError, match="it continues a, which is not before it"):
        reader.traces_of(["b"])


def test_the_page_gets_where_a_rollout_forked_and_what_it_generated_itself() -> None:
    sent = trace_json(0, TWIG, None, None)
    assert (sent["parent"], sent["num_shared_turns"], sent["num_own_tokens"], sent["num_tokens"]) == ("b", 2, 1, 3)
