"""Episodes of any environment as the page reads them: messages, calls of any tool, rewards, filters."""

from dataclasses import replace
from pathlib import Path

import pytest

from rstar2.extensions import TOOLS
from rstar2.records import Group, Outcome, Selection, StopReason, ToolCall, ToolResult, ToolStatus, Trace, Turn, Verdict
from rstar2.records.codec import encode
from rstar2.web.cells import PYTHON_TOOLS
from rstar2.web.messages import SaidMessage, earlier_messages, messages_in, user_text
from rstar2.web.selection import why
from rstar2.web.step_reader import Query, RolloutRow, StepReader
from rstar2.web.summary import summarise
from rstar2.web.tool_calls import tool_call_statistics
from rstar2.web.trace_wire import NUM_SHOWN_CHARS, call_json, group_row_json, row_json, short_trace_json, trace_json

pytestmark = pytest.mark.unit

CHATML = "<|im_start|>{}\n{}<|im_end|>\n"


def prompt(*messages: tuple[str, str]) -> str:
    return "".join(CHATML.format(*message) for message in messages) + "<|im_start|>assistant\n<reason>"


def said(text: str, reply: str = "") -> Turn:
    appended = "\n" + prompt(("user", reply)) if reply else ""
    return Turn((1,), (-1.0,), text, StopReason.END_OF_TURN, appended_text=appended)


def called(*calls: ToolCall) -> Turn:
    text = "".join("<tool_call>\n{}\n</tool_call>" for _ in calls)
    results = tuple(ToolResult(ToolStatus.OK, "found", wall_s=0.5) for _ in calls)
    appended = "\n" + prompt(("user", "<tool_response>\nfound\n</tool_response>"))
    return Turn((1,), (-1.0,), text, StopReason.END_OF_TURN, calls=calls, results=results, appended_text=appended)


def episode(*turns: Turn, **changed: object) -> Trace:
    trace = Trace("t", "p", (1,), prompt(("system", "Play."), ("user", "Begin.")), turns, Outcome.ANSWERED)
    return replace(trace, **changed)


def test_messages_are_separated_from_the_template() -> None:
    earlier = prompt(("system", "Be good."), ("user", "Hello"), ("assistant", "Hi"), ("user", "What?"))
    assert user_text(earlier) == "What?"
    assert earlier_messages(earlier) == [SaidMessage("user", "Hello"), SaidMessage("assistant", "Hi")]
    assert earlier_messages(prompt(("system", "Be good."), ("user", "What?"))) == []
    assert user_text("no template") == "no template"
    assert earlier_messages("no template") == []


@pytest.mark.parametrize(
    "text",
    [
        "<|start_header_id|>user<|end_header_id|>\n\nYes\nno<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "\n<start_of_turn>user\nYes\nno<end_of_turn>\n<start_of_turn>model\n",
        "<|user|>\nYes\nno<|end|>\n<|assistant|>\n",
        "<|user|>\nYes\nno</s>\n<|assistant|>\n",
    ],
    ids=["llama", "gemma", "phi", "zephyr"],
)
def test_other_templates_are_read_too(text: str) -> None:
    assert messages_in(text)[0] == SaidMessage("user", "Yes\nno")
    assert messages_in(text)[1].role == "assistant"
    assert user_text(text) == "Yes\nno"


def test_a_reply_of_the_user_is_not_a_tool_response() -> None:
    trace = episode(called(ToolCall("{}", "look", {})), said("I go north.", "You see a door."), said("I open it."))
    for wire in (trace_json(0, trace, None, None), short_trace_json(0, trace, None)):
        assert [turn["reply"] for turn in wire["turns"]] == ["", "You see a door.", ""]
    long = episode(said("x", "y" * 10_000))
    assert len(short_trace_json(0, long, None)["turns"][0]["reply"]) < 2 * NUM_SHOWN_CHARS


def test_calls_of_any_tool_have_their_arguments() -> None:
    search = ToolCall(
        "{}", "search", {"query": "two\nlines", "limit": 5, "where": {"year": [1999]}, "code": "print(1)"}
    )
    assert call_json(search) == {
        "name": "search",
        "is_python": False,
        "text": "",
        "arguments": [
            ["query", "two\nlines"],
            ["limit", "5"],
            ["where", '{\n  "year": [\n    1999\n  ]\n}'],
            ["code", "print(1)"],
        ],
    }
    python = call_json(ToolCall("{}", "execute_python_code_with_standard_io", {"code": "print(1)\n", "input": "7"}))
    assert (python["is_python"], python["text"], python["arguments"]) == (True, "print(1)", [["input", "7"]])
    unreadable = call_json(ToolCall("{broken"))
    assert (unreadable["name"], unreadable["text"], unreadable["arguments"]) == (None, "{broken", [])
    [[_, text]] = call_json(ToolCall("{}", "write", {"text": "z" * 10_000}), NUM_SHOWN_CHARS)["arguments"]
    assert len(text) < 2 * NUM_SHOWN_CHARS


def test_the_tools_that_ship_are_python_tools() -> None:
    assert set(TOOLS) <= PYTHON_TOOLS


def test_a_reward_has_its_parts_and_no_verdict() -> None:
    trace = episode(
        said("done"),
        reward=0.75,
        environment="game",
        format_penalty=0.25,
        metadata={"score/goal": "0.5", "score/speed": "0.25", "stage": "one"},
    )
    wire = trace_json(0, trace, None, None)
    assert (wire["reward"], wire["is_right"], wire["verdict"]) == (0.75, False, None)
    assert wire["parts"] == [["goal", 0.5], ["speed", 0.25]]
    assert wire["metadata"] == [["stage", "one"]]
    assert (wire["environment"], wire["format_penalty"]) == ("game", 0.25)
    row = row_json(RolloutRow(0, summarise(trace)), None)
    assert (row["reward"], row["parts"], row["environment"]) == (0.75, wire["parts"], "game")
    assert "wrong" in row["flags"]
    assert "right" in summarise(replace(trace, reward=1.0)).flags
    assert "ungraded" in summarise(replace(trace, reward=None)).flags


def test_faults_and_undecided_episodes_say_why() -> None:
    fault = episode(outcome=Outcome.INFRASTRUCTURE_FAULT, note="game.py, line 7, in reset: KeyError: 'map'")
    undecided = episode(said("x"), verdict=Verdict.UNDECIDED, note="the reward took more than 30 s")
    for trace, flag in ((fault, "infrastructure_fault"), (undecided, "undecided")):
        row = row_json(RolloutRow(0, summarise(trace)), None)
        assert (row["note"], row["is_right"], row["reward"]) == (trace.note, None, None)
        assert flag in row["flags"]


def test_rollouts_are_filtered_by_environment(tmp_path: Path) -> None:
    names = ["", "game", "search", "game"]
    traces = [replace(episode(said("x")), id=f"t{n}", environment=name) for n, name in enumerate(names)]
    (tmp_path / "traces").write_bytes(b"".join(encode(trace) + b"\n" for trace in traces))
    reader = StepReader(tmp_path / "traces", tmp_path / "groups")
    for flag, expected in (("game", ["t1", "t3"]), ("", ["t0"]), ("other", [])):
        page = reader.page(Query(frozenset({f"environment:{flag}"})), 0, 10)
        assert [row.summary.id for row in page.rows] == expected
    assert reader.environments == ["", "game", "search"]


def test_what_resampling_took_for_a_success_is_named_apart_from_what_is_right() -> None:
    group = Group(
        "g", "p", 1, ("a", "b", "c"), (1.0, 0.5, 0.25), (0.0, 0.5, 0.0), (0.0,) * 3, (None,) * 3,
        (Selection.KEPT, Selection.DOWNSAMPLED, Selection.KEPT), is_success=(True, True, False),
    )  # fmt: skip
    assert why(group, 1).startswith("Left out by resampling: 1 of 2 successes were kept.")
    assert why(group, 2) == "Kept: 1 of 1 failures were kept. Penalties play no part among failures."
    row = group_row_json(0, group, None)
    assert (row["num_right"], row["mean_reward"]) == (1, pytest.approx(1.75 / 3))


def test_calls_are_counted_by_tool() -> None:
    look, go = ToolCall("{}", "look", {}), ToolCall("{}", "go", {"to": "north"})
    failed = replace(called(go), results=(ToolResult(ToolStatus.RAISED, "no door", wall_s=2.0),))
    trace = episode(called(look, go), called(go), failed, replace(called(ToolCall("junk")), results=()))
    tools = tool_call_statistics([RolloutRow(0, summarise(trace))])["tools"]
    assert [(tool["name"], tool["count"], tool["num_errors"], tool["max_s"]) for tool in tools] == [
        ("go", 3, 1, 2.0),
        ("look", 1, 0, 0.5),
    ]
