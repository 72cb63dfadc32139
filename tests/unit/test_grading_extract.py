"""Where an answer may stand, rule by rule."""

import time

import pytest

from rstar2.grading import AnswerPlace, count_answer_blocks, extract_answer, last_box

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<reason>so</reason><answer>\boxed{5}</answer>", "5"),
        (r"<answer>\boxed{5}</answer> Wait. <answer>\boxed{6}</answer>", "6"),
        (r"<answer>\boxed{17}. Wait, \boxed{204}</answer>", "204"),
        (r"<answer>\boxed{5}</answer> no, \boxed{6}", "5"),
        (r"\boxed{6} <answer>it is 5</answer>", None),
        (r"<answer>\boxed{5}</answer><answer>hm</answer>", None),
        (r"<answer>\boxed{5}", None),
        (r"<answer>\boxed{5}</answer><answer>\boxed{6}", "5"),
        (r"<answer>\boxed{1}<answer>\boxed{2}</answer>", "2"),
        (r"<answer>\boxed{5}</answer>\boxed{6}</answer>", "5"),
        (r"</answer>\boxed{5}<answer>", None),
        (r"<Answer>\boxed{5}</Answer>", None),
        (r"<answer>\boxed{}</answer>", None),
        (r"<answer>\boxed{ }</answer>", None),
        (r"\boxed{5}", None),
        ("", None),
    ],
)
def test_the_last_answer_block_holds_the_answer(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{x = \boxed{5} }", "5"),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"\boxed{5}} {{ \boxed{6}", "6"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a \\ b}", r"a \\ b"),
        (r"\\boxed{5}", None),
        (r"\boxed {5}", "5"),
        (r"\boxed 5", None),
        (r"\boxed{ {5 }", None),
        ("\\boxed{1\n+1}", "1\n+1"),
    ],
)
def test_the_last_balanced_box_counts(text: str, content: str | None) -> None:
    assert last_box(text) == content


def test_plain_texts_need_no_block() -> None:
    assert extract_answer(r"so \boxed{5}", place=AnswerPlace.ANYWHERE) == "5"


@pytest.mark.parametrize(
    ("text", "num_blocks"),
    [
        ("", 0),
        ("<answer>", 0),
        ("<answer></answer>", 1),
        ("<answer>a<answer>b</answer>", 1),
        ("<answer>a</answer></answer><answer>b</answer>", 2),
    ],
)
def test_blocks_are_counted_as_they_are_extracted(text: str, num_blocks: int) -> None:
    assert count_answer_blocks(text) == num_blocks


@pytest.mark.parametrize(
    ("turns", "num_blocks", "answer"),
    [
        (("<answer>", r"\boxed{5}</answer>"), 0, None),
        ((r"<answer>\boxed{5}", "</answer>"), 0, None),
        (("<ans", r"wer>\boxed{5}</answer>"), 0, None),
        ((r"<answer>\boxed{", "5}</answer>"), 0, None),
        ((r"<answer>\boxed{5}</answer>", "<answer>", r"\boxed{6}</answer>"), 1, "5"),
        ((r"<answer>\boxed{5}</answer>", r"<answer>\boxed{6}</answer>"), 2, "6"),
        ((r"<answer>\boxed{5}</answer>", "<answer>hm</answer>", "bye"), 2, None),
        ((), 0, None),
    ],
)
def test_a_block_belongs_to_one_turn(turns: tuple[str, ...], num_blocks: int, answer: str | None) -> None:
    assert count_answer_blocks(*turns) == num_blocks
    assert extract_answer(*turns) == answer


def test_a_box_belongs_to_one_turn_wherever_it_stands() -> None:
    anywhere = AnswerPlace.ANYWHERE
    assert extract_answer(r"\boxed{4}", r"\boxed{", "5}", place=anywhere) == "4"
    assert extract_answer(r"\boxed{4}", r"\boxed{5}", "so it is", place=anywhere) == "5"
    assert extract_answer(r"\boxed{4}", r"\boxed{}", place=anywhere) is None


@pytest.mark.parametrize(
    "piece",
    ["{", "}", r"\boxed{", r"\boxed ", "<answer>", "<", "<answer>\\boxed{</answer>", "\\", "\\boxed{}", "é", "\x00"],
)
@pytest.mark.parametrize("place", list(AnswerPlace))
def test_ten_megabytes_of_garbage_take_no_time(piece: str, place: AnswerPlace) -> None:
    text = f"<answer>{piece * (10_000_000 // len(piece))}</answer>"
    started = time.process_time()
    extract_answer(text, place=place)
    assert time.process_time() - started < 5
