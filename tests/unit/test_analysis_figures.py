"""The figures: well-formed whatever a model wrote, and true to the numbers."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from analysis_traces import NAME_ERROR, OK, HandTexts, calling_turn, make_call, make_trace, silent_turn

from rstar2.analysis import Analysis, analyze, as_json, draw_figures
from rstar2.analysis.figures import MAX_SHOWN_WORDS
from rstar2.analysis.kind_words import KindWords, WordCount
from rstar2.analysis.kinds import TokenKind
from rstar2.analysis.svg import ticks

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script>&amp;"\x00\x1b\ud83d\u202e]]>'
WORDS = ["Wait", " Düsseldorf", " " + "数" * 30, " naïve'", "<script>", "&", "\x00", " x" * 4000]


def full_analysis() -> Analysis:
    texts = HandTexts()
    hot = [2.0] * 8 + [0.1] * 40
    first = texts.turn("|".join(WORDS), None, calls=(make_call(HOSTILE),), results=(NAME_ERROR,))
    second = texts.turn("|".join([*WORDS, *(f" w{index}" for index in range(40))]), hot)
    third = make_trace(first, second, id=HOSTILE, step=3, reward=1.0)
    return analyze([third, make_trace(calling_turn("x", OK), silent_turn(), step=5, reward=0.0)], texts)


def test_every_figure_is_drawn_and_nothing_in_it_is_markup_of_the_models() -> None:
    figures = draw_figures(full_analysis(), HOSTILE)
    assert sorted(figures) == [
        "after-errors.svg",
        "entropy-around-responses.svg",
        "entropy-by-class.svg",
        "forking-words.svg",
        "reflection-words.svg",
        "tool-errors-over-training.svg",
    ]
    for name, picture in figures.items():
        root = ET.fromstring(picture.encode())
        assert root.tag == f"{SVG}svg", name
        assert not list(root.iter(f"{SVG}script")), name
        assert "prefers-color-scheme: dark" in picture
        description = root.find(f"{SVG}desc")
        assert description is not None
        assert "<script>alert(1)</script>&amp;" in (description.text or "")
        numbers = [value for element in root.iter() for value in element.attrib.values()]
        assert not any(word in value for value in numbers for word in ("nan", "inf")), name


def test_the_document_can_be_written_and_holds_the_shares() -> None:
    document = as_json(full_analysis())
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    assert json.loads(text.encode("utf-8")) == document
    assert document["after_errors"]["shares"]["gave_up"] == 1.0
    assert document["over_training"][0]["right"] == {
        "num_traces": 1,
        "num_calls": 1,
        "num_errors": 1,
        "error_share": 1.0,
    }
    assert document["entropy"]["by_class"]["reasoning"]["high_share"] > 0


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw_figures(analyze([]), "run") == {}


def test_words_are_ranked_bars_of_which_the_first_is_longest() -> None:
    counts = [("wide" * 12, 90), *((f"word{index}", 80 - index) for index in range(70))]
    words = KindWords(500, tuple(WordCount(text, count, count, 1.0) for text, count in counts), ())
    analysis = replace(full_analysis(), kinds={TokenKind.FORKING: words})
    root = ET.fromstring(draw_figures(analysis, "run")["forking-words.svg"].encode())
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    shown = [text for text in texts if text.startswith(("wide", "word"))]
    assert shown == ["widewidewidewidewidewid…", *(f"word{index}" for index in range(MAX_SHOWN_WORDS - 1))]
    bars = [float(element.attrib["width"]) for element in root.iter(f"{SVG}rect") if element.attrib["height"] == "13.0"]
    assert len(bars) == len(shown)
    assert bars == sorted(bars, reverse=True) and bars[0] > 6 * (bars[0] - bars[1]) > 0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3, 3, [3]),
        (0, 5e-324, [0]),
        (0, 4e-12, [0, 1e-12, 2e-12, 3e-12, 4e-12]),
        (-32, 64, [-20, 0, 20, 40, 60]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected
