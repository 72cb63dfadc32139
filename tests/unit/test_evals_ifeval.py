"""Each of IFEval's checks, passed and failed. Golds agree with lm_eval's own on these texts."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2.data import InstructionTask
from rstar2.errors import UserError
from rstar2.evals.ifeval.checks import CHECKS, follows
from rstar2.evals.ifeval.judge import followed, loose_versions
from rstar2.evals.ifeval.language import capital_words, count_sentences, require_nltk

pytestmark = pytest.mark.unit

LANGUAGE_CHECKS = ("language:response_language", "change_case:english_capital", "change_case:english_lowercase")
NLTK_CHECKS = ("length_constraints:number_sentences", "change_case:capital_word_frequency")

CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("keywords:existence", {"keywords": ["Dog", "cat"]}, "A cat saw a DOG.", "A cat."),
    ("keywords:frequency", {"keyword": "ha", "frequency": 3, "relation": "at least"}, "haHA ha", "ha ha"),
    ("keywords:frequency", {"keyword": "ha", "frequency": 2, "relation": "less than"}, "ha", "ha ha"),
    ("keywords:forbidden_words", {"forbidden_words": ["cat"]}, "A category.", "The Cat."),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "Zz", "z"),
    ("keywords:letter_frequency", {"letter": "!", "let_frequency": 2, "let_relation": "less than"}, "a!", "a!!"),
    ("language:response_language", {"language": "de"}, "Das ist ein kleines Haus im Wald.", "This is a small house."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two.", "One, two"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}, "Dr. Who said so", "A? B!"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "it's me", "me too"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "me too", "you and me"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb\n***", "a\n***\n***\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        "a\n\n'then, b",
        "then a\n\nb",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b]", "[a and b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. more", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "p.p.s more", "P.S. more"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "\n\n* a\n - b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "Well: My answer is no.", "No."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", "*a* and * *"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1 a Section 2 b",
        "Section one, Section 2",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
    ("detectable_format:title", {}, "<<My day>>\ntext", "<< >> <my day>"),
    ("combination:two_responses", {}, "a ****** b", "a ****** a"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, " say HI. Hi!", "Hi! Say hi."),
    ("startend:end_checker", {"end_phrase": "The end."}, 'So it goes. the end."', "The end. Really."),
    ("startend:quotation", {}, ' "quoted" ', '"quoted'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 3, "capital_relation": "at least"},
        "DON'T PANIC",
        "Do NOT Panic",
    ),
    ("change_case:english_capital", {}, "THIS IS AN ENGLISH SENTENCE ABOUT A DOG.", "This is English."),
    ("change_case:english_lowercase", {}, "this is an english sentence about a dog.", "This is english."),
    ("punctuation:no_comma", {}, "one; two", "one, two"),
]


def has_punkt() -> bool:
    try:
        require_nltk()
    except UserError:
        return False
    return True


needs_punkt = pytest.mark.skipif(not has_punkt(), reason="nltk or its punkt_tab is not installed")


def needs_packages(name: str) -> None:
    if name in LANGUAGE_CHECKS and importlib.util.find_spec("langdetect") is None:
        pytest.skip("langdetect is not installed")
    if name in NLTK_CHECKS and not has_punkt():
        pytest.skip("nltk or its punkt_tab is not installed")


@pytest.mark.parametrize(("name", "arguments", "passing", "failing"), CASES)
def test_a_check_passes_what_follows_and_fails_what_does_not(
    name: str, arguments: dict[str, Any], passing: str, failing: str
) -> None:
    needs_packages(name)
    assert follows(name, passing, arguments)
    assert not follows(name, failing, arguments)
    assert not follows(name, " \n", arguments), "an empty response follows nothing"


def test_every_check_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(CHECKS)


def test_an_unknown_check_or_relation_is_an_error_and_not_a_fail() -> None:
    with pytest.raises(UserError, match="keywords:exist'"):
        follows("keywords:exist", "text", {})
    with pytest.raises(UserError, match="at least"):
        follows("length_constraints:number_words", "text", {"num_words": 1, "relation": "about"})


@needs_punkt
@pytest.mark.parametrize(
    ("text", "num_sentences"),
    [
        ("One. Two! Three?", 3),
        ("It costs 3.14 dollars. Mr. Smith paid in the U.S. last year.", 2),
        ("no end", 1),
        ("", 0),
    ],
)
def test_sentences_are_counted_by_the_trained_splitter(text: str, num_sentences: int) -> None:
    assert count_sentences(text) == num_sentences


def test_a_missing_splitter_is_the_users_to_get(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    monkeypatch.setattr("rstar2.evals.ifeval.language._bundled_data", list)
    require_nltk.cache_clear()
    with pytest.raises(UserError, match=r"nltk\.downloader punkt_tab"):
        require_nltk()


@needs_punkt
def test_capital_words_are_split_as_the_original_splits_them() -> None:
    assert capital_words("NASA's A-B plan, I said: OK (U.S.)") == 5


def test_loose_versions_forgive_an_introduction_and_bold_type() -> None:
    task = InstructionTask(("punctuation:no_comma", "keywords:existence"), ({}, {"keywords": ["ab"]}))
    response = "Sure, here it is:\na*b"
    assert followed(task, [response]) == [False, False]
    assert followed(task, loose_versions(response)) == [True, True]


@pytest.mark.parametrize("flood", ["[", "<<", "*", " ", "\n", ".", "a. ", "{", "'", "p.", "- ", "\n* "])
def test_no_check_hangs_on_a_flood(flood: str) -> None:
    text, start_s = flood * (50_000 // len(flood)) + "x", time.process_time()
    for name, arguments, *_ in CASES:
        if name not in LANGUAGE_CHECKS and (name not in NLTK_CHECKS or has_punkt()):
            follows(name, text, arguments)
    assert time.process_time() - start_s < 60
