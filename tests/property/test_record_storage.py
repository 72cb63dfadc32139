"""Any record comes back exactly; a file cut anywhere holds exactly the records whose lines were whole."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.records import (
    Group,
    Outcome,
    Problem,
    Selection,
    StopReason,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trace,
    Turn,
    Verdict,
)
from rstar2.records.codec import decode, encode
from rstar2.records.record_file import RecordWriter, iterate, read_from

pytestmark = pytest.mark.property


def _join_surrogate_pairs(text: str) -> str:
    """JSON cannot tell a high and a low surrogate side by side from the character they stand for."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


# Named one by one: from the alphabet of all characters surrogates are drawn too seldom to be tested.
AWKWARD = 'aé\ud83d\udc00\n\r\u2028"\\\x00'
texts = (st.text(max_size=20) | st.text(st.sampled_from(AWKWARD), max_size=20)).map(_join_surrogate_pairs)
numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=2**63)
metadata = st.dictionaries(texts, texts, max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall, raw=texts, name=st.none() | texts, arguments=st.dictionaries(texts, json_values, max_size=3)
)
results = st.builds(
    ToolResult,
    status=st.sampled_from(ToolStatus),
    text=texts,
    wall_s=numbers,
    cpu_s=numbers,
    num_attempts=counts,
    num_cut_chars=counts,
)


def tuples(values: st.SearchStrategy[Any], max_size: int = 4) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, max_size=max_size).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    num_tokens = draw(st.integers(0, 5))
    aligned = st.just(()) | st.tuples(*[numbers] * num_tokens)
    made = draw(tuples(calls, 2))
    return Turn(
        token_ids=draw(st.tuples(*[counts] * num_tokens)),
        log_probs=draw(aligned),
        text=draw(texts),
        stop_reason=draw(st.sampled_from(StopReason)),
        entropies=draw(aligned),
        calls=made,
        results=draw(tuples(results, len(made))),
        appended_ids=draw(tuples(counts)),
        appended_text=draw(texts),
        policy_version=draw(counts),
        queue_s=draw(numbers),
        generate_s=draw(numbers),
        tool_s=draw(numbers),
    )


traces = st.builds(
    Trace,
    id=texts,
    problem_id=texts,
    prompt_ids=tuples(counts),
    prompt_text=texts,
    turns=tuples(turns(), 2),
    outcome=st.sampled_from(Outcome),
    group_id=texts,
    sample_index=counts,
    step=counts,
    model=texts,
    answer=st.none() | texts,
    verdict=st.none() | st.sampled_from(Verdict),
    reward=st.none() | numbers,
    note=texts,
    metadata=metadata,
)
problems = st.builds(
    Problem,
    id=texts,
    problem=texts,
    answer=texts,
    source=texts,
    level=st.none() | texts,
    subject=st.none() | texts,
    metadata=metadata,
)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    num_rollouts = draw(st.integers(0, 4))
    values = st.tuples(*[st.none() | numbers] * num_rollouts)
    return Group(
        id=draw(texts),
        problem_id=draw(texts),
        step=draw(counts),
        trace_ids=draw(st.tuples(*[texts] * num_rollouts)),
        rewards=draw(values),
        error_penalties=draw(values),
        format_penalties=draw(values),
        advantages=draw(values),
        selections=draw(st.tuples(*[st.sampled_from(Selection)] * num_rollouts)),
    )


@given(traces | groups() | problems)
def test_every_record_comes_back_exactly(record: Trace | Group | Problem) -> None:
    line = encode(record)
    assert b"\n" not in line
    line.decode("utf-8")
    # repr, because == takes 0.0 for -0.0 and 1 for 1.0.
    assert repr(decode(type(record), line)) == repr(record)


@given(st.lists(problems, min_size=1, max_size=4), st.data())
def test_a_file_cut_anywhere_holds_its_whole_lines_and_goes_on(records: list[Problem], data: st.DataObject) -> None:
    lines = [encode(record) + b"\n" for record in records]
    content = b"".join(lines)
    num_bytes = data.draw(st.integers(0, len(content)), label="cut at")
    ends = [sum(map(len, lines[: index + 1])) for index in range(len(lines))]
    whole = [record for record, end in zip(records, ends, strict=True) if end <= num_bytes]
    good_end = max((end for end in ends if end <= num_bytes), default=0)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problems.jsonl"
        path.write_bytes(content[:num_bytes])
        assert read_from(Problem, path, 0) == (whole, good_end)

        with RecordWriter[Problem](path) as writer:
            assert writer.num_torn_bytes == num_bytes - good_end
            writer.append(records[0])
        assert list(iterate(Problem, path)) == [*whole, records[0]]
        assert read_from(Problem, path, good_end) == ([records[0]], good_end + len(lines[0]))
