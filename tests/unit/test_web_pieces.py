"""The viewer's pure pieces: cells, reasons, statistics, schedules, vocabularies."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.records import (
    Group,
    Selection,
    StopReason,
    ToolCall,
    ToolResult,
    ToolStatus,
    Turn,
)
from rstar2.web.assets import assets, bundled_script
from rstar2.web.cells import CellKind, cells_of
from rstar2.web.report import evenly, page_with
from rstar2.web.selection import why
from rstar2.web.step_reader import RolloutRow
from rstar2.web.summary import CallSummary, Summary
from rstar2.web.tool_calls import tool_call_statistics
from rstar2.web.vocabulary import Vocabulary

pytestmark = pytest.mark.unit

KEPT, LEFT, UNSCORED, EQUAL = (
    Selection.KEPT,
    Selection.DOWNSAMPLED,
    Selection.UNSCORED,
    Selection.EQUAL_REWARDS,
)


def turn(text: str, calls: tuple[ToolCall, ...] = (), results: tuple[ToolResult, ...] = ()) -> Turn:
    return Turn((1,), (-1.0,), text, StopReason.END_OF_TURN, calls=calls, results=results)


def kinds_and_texts(item: Turn, before: str = "<reason>") -> list[tuple[str, str]]:
    return [(cell.kind.value, cell.text) for cell in cells_of(item, before)]


def test_a_turn_becomes_reasoning_code_and_answer() -> None:
    call = ToolCall(raw="{…}", name="python", arguments={"code": "print(1)\n"})
    result = ToolResult(ToolStatus.OK, "1")
    item = turn(
        "Think.</reason>\n<tool_call>\n{…}\n</tool_call> then <answer>\\boxed{1}</answer><|im_end|>", (call,), (result,)
    )
    assert kinds_and_texts(item) == [
        ("reason", "Think."),
        ("tool_call", "print(1)"),
        ("plain", "then"),
        ("answer", "\\boxed{1}"),
        ("plain", "<|im_end|>"),
    ]
    assert cells_of(item, "<reason>")[1].result == result


def test_text_is_reasoning_from_the_start_only_where_the_environment_opened_it() -> None:
    assert kinds_and_texts(turn("Hello"), "<reason>") == [("reason", "Hello")]
    assert kinds_and_texts(turn("Hello"), "assistant\n") == [("plain", "Hello")]
    assert kinds_and_texts(turn("<reason>Hello"), "assistant\n") == [("reason", "Hello")]
    assert kinds_and_texts(turn("Hello<|im_end|>"), "<reason>") == [("reason", "Hello"), ("plain", "<|im_end|>")]


def test_calls_and_their_tags_need_not_agree() -> None:
    """An unparsed tag stays text; a call without a tag of its own is still shown."""
    assert kinds_and_texts(turn("x<tool_call>half a ca")) == [("reason", "x"), ("tool_call", "half a ca")]
    two = (ToolCall(raw="a"), ToolCall(raw="b", name="t", arguments={"n": 1}))
    assert kinds_and_texts(turn("x<tool_call>a</tool_call>", two)) == [
        ("reason", "x"),
        ("tool_call", "a"),
        ("tool_call", ""),
    ]
    assert cells_of(turn("x<tool_call>a</tool_call>", two), "")[-1].kind is CellKind.CALL
    assert cells_of(turn("x<tool_call>a</tool_call>", two), "")[-1].call == two[1]


def group(rewards: tuple[float | None, ...], penalties: tuple[float | None, ...], *selections: Selection) -> Group:
    none = (None,) * len(rewards)
    zeros = tuple(None if reward is None else 0.0 for reward in rewards)
    return Group("g", "p", 1, tuple(map(str, range(len(rewards)))), rewards, penalties, zeros, none, selections)


def test_the_reason_says_what_the_group_shows() -> None:
    item = group(
        (1.0, 1.0, 1.0, 0.0, 0.0, None), (0.0, 0.5, 0.25, 0.0, 1.0, None), KEPT, LEFT, KEPT, KEPT, LEFT, UNSCORED
    )
    assert why(item, 0) == (
        "Kept: 2 of 3 successes were kept. Its penalty is 0.00: 0 other successes have a lower, 2 a higher one."
    )
    assert why(item, 1) == (
        "Left out by resampling: 2 of 3 successes were kept. "
        "Its penalty is 0.50: 2 other successes have a lower, 0 a higher one."
    )
    assert why(item, 3) == "Kept: 1 of 2 failures were kept. Penalties play no part among failures."
    assert why(item, 5).startswith("Not scored")
    by_format = replace(item, penalty="format")
    assert why(by_format, 1).endswith("Its penalty is 0.00: 0 other successes have a lower, 0 a higher one.")
    assert "every kept rollout has the reward 1" in why(group((1.0, 1.0), (0.0, 0.0), EQUAL, LEFT), 0)


def summary(*calls: CallSummary) -> Summary:
    return Summary("t", "p", 0, "answered", "right", 1.0, "1", "1", "p", 1, 10, len(calls), 0, 1.0, calls=calls)


def test_tool_call_statistics() -> None:
    ok = [CallSummary(ToolStatus.OK, wall_s, 1) for wall_s in (0.001, 0.002, 0.003, 0.004)]
    raised = CallSummary(ToolStatus.RAISED, 0.5, 2)
    result = tool_call_statistics(
        [RolloutRow(0, summary(*ok)), RolloutRow(9, summary(raised)), RolloutRow(17, summary())]
    )
    assert result["num_calls"] == 5
    assert result["num_rollouts"] == 3
    assert result["num_without"] == 1
    assert result["num_retried"] == 1
    assert [(row["status"], row["count"], row["p50_s"]) for row in result["statuses"]] == [
        ("ok", 4, 0.002),
        ("raised", 1, 0.5),
    ]
    assert result["all"]["max_s"] == 0.5
    assert result["slowest"][0] == {"at": 9, "id": "t", "status": "raised", "wall_s": 0.5}
    assert sum(result["bins"]["none"]) == 4
    assert sum(result["bins"]["policy"]) == 1
    edges = result["bin_edges_s"]
    at = result["bins"]["policy"].index(1)
    assert edges[at] <= 0.5 <= edges[at + 1]


def test_a_vocabulary_gives_the_text_of_single_tokens(tmp_path: Path) -> None:
    document = {
        "model": {"vocab": {"Ġhello": 0, "Ċ": 1, "Ã©": 2, "Ã": 3, "a": 4}},
        "added_tokens": [{"id": 5, "content": "<|im_end|>"}],
        "decoder": {"type": "ByteLevel"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    texts = Vocabulary.read(tmp_path)
    assert texts([0, 1, 2, 3, 4, 5, 99]) == [" hello", "\n", "é", "�", "a", "<|im_end|>", "[99]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"▁hello": 0}}}))
    assert Vocabulary.read(tmp_path)([0]) == [" hello"]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["<unk>", 0], ["▁a", -1.5]]}}))
    assert Vocabulary.read(tmp_path)([1]) == [" a"]
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(UserError, match="not a tokenizer"):
        Vocabulary.read(tmp_path)


def test_the_page_has_no_way_to_parse_html_and_names_no_other_place() -> None:
    scripts = "".join(asset.body.decode() for name, asset in assets().items() if name.endswith(".js"))
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    ):
        assert forbidden not in scripts, forbidden
    everything = "".join(asset.body.decode() for asset in assets().values())
    assert "https:" not in everything
    assert everything.replace("http://www.w3.org/2000/svg", "").count("http:") == 0


def test_the_bundle_holds_every_module_once_and_no_import() -> None:
    bundle = bundled_script()
    names = [name.removesuffix(".js") for name in assets() if name.endswith(".js")]
    assert [bundle.count(f"const {name}_module =") for name in names] == [1] * len(names)
    assert "\nimport " not in bundle
    assert "\nexport " not in bundle
    assert "</script" not in bundle.lower()


def test_embedded_data_cannot_end_its_element() -> None:
    page = page_with({"runs": ["</script><script>window.pwned = 1</script><!--"]})
    assert page.lower().count("</script>") == 2
    assert "<!--" not in page.partition('id="data">')[2]


def test_evenly_keeps_both_ends() -> None:
    assert evenly(list(range(500)), 3) == [0, 250, 499]
    assert evenly([4, 5], 8) == [4, 5]
