"""Which class each token has, on turns split by hand."""

import pytest
from analysis_traces import HandTexts

from rstar2.analysis.classes import ClassSpan, TokenClass, class_spans, classify
from rstar2.records import StopReason, ToolCall

pytestmark = pytest.mark.unit

LETTERS = {
    TokenClass.REASONING: "r",
    TokenClass.AFTER_RESPONSE: "f",
    TokenClass.CODE: "c",
    TokenClass.CALL_SYNTAX: "s",
    TokenClass.ANSWER: "a",
    TokenClass.MARKUP: "m",
}


def classes_of(split: str, *, follows: bool = False, raws: tuple[str, ...] = (), **fields: object) -> str:
    turn = HandTexts().turn(split, calls=tuple(ToolCall(raw) for raw in raws), **fields)
    return "".join(LETTERS[found] for found in classify(turn, split.split("|"), follows_response=follows))


@pytest.mark.parametrize(
    ("split", "classes"),
    [
        ("So| we| run|</reason>|<|im_end|>", "rrrmrrr"),  # a control token in pieces is not one
        ("So|</reason>|<answer>|\\boxed{|4|}|</answer>|<eos>", "rmaaaaam"),
        ('go|<tool_call>|{"|name|": "|py|", "arguments|": {"|code|": "|print|(1)|"}}|</tool_call>', "rsssssssssccss"),
        # A tag inside a call's string, and an answer, are code.
        ('<tool_call>|{"arguments": {"code": "|<answer>|</answer>|"}}|</tool_call>|ok', "ssccssr"),
        # Escaped quotes stay inside; numbers are not code; strings in lists are.
        ('<tool_call>|{"arguments": {"n": |3|, "l": ["|a\\"b|"]}}|</tool_call>', "sssscss"),
        # Arguments as one string.
        ('<tool_call>|{"name": "|py|", "arguments": "|x=1|"}|</tool_call>', "sssscss"),
        # Malformed: the string never ends, nor does the call.
        ('<tool_call>|{"arguments": {"code": "|x = \\', "ssc"),
        ("a|</tool_call>|b", "rsr"),
        ("<answer>|never closed| at all", "aaa"),
        ("say <answer>| now <answer>|5|</answer>|.", "rraar"),
        ("", "r"),
    ],
)
def test_classes(split: str, classes: str) -> None:
    assert classes_of(split) == classes


def test_the_parser_decides_where_a_call_ends() -> None:
    raw = '{"name": "py", "arguments": {"code": "s = \'</tool_call>\'"}}'
    start = raw.index("</tool_call>")
    split = f"<tool_call>|{raw[: start - 1]}|'|</tool_call>|'|{raw[-3:]}|</tool_call>|done"
    assert "".join(split.split("|")) == f"<tool_call>{raw}</tool_call>done"
    assert classes_of(split, raws=(raw,)) == "sscccssr"


def test_the_first_sixteen_tokens_after_a_response_unless_they_are_something_else() -> None:
    assert classes_of("|".join("abcdefghijklmnopqr"), follows=True) == "f" * 16 + "rr"
    assert classes_of("a|</reason>|<answer>|5|</answer>", follows=True) == "fmaaa"


def test_a_token_counts_where_its_first_visible_character_stands() -> None:
    assert classes_of("so |\n<answer>|5|</answer>\nbye|  | now") == "raaarr"


def test_an_empty_piece_belongs_to_the_character_that_comes_next() -> None:
    assert classes_of("so||<answer>||4|</answer>|") == "raaaaaa"


def test_only_a_turn_that_ended_itself_has_an_end_token() -> None:
    assert classes_of("a|<eos>") == "rm"
    assert classes_of("a|<eos>", stop_reason=StopReason.TOKEN_LIMIT) == "rr"


def test_spans_are_the_classes_as_stretches() -> None:
    r, c = TokenClass.REASONING, TokenClass.CODE
    assert class_spans(3, (r, r, c, r)) == (ClassSpan(3, 0, 2, r), ClassSpan(3, 2, 3, c), ClassSpan(3, 3, 4, r))
    assert class_spans(0, ()) == ()
