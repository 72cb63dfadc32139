"""Entropies known in advance, and every number that is made of them."""

from pathlib import Path

import numpy as np
import pytest
from analysis_traces import NAME_ERROR, OK, HandTexts, make_call, make_trace

from rstar2.analysis import Measure, TokenClass, TokenizerFile, TokenKind, analyze, examine, find_token_texts
from rstar2.analysis.examine import Response, find_high
from rstar2.analysis.kinds import dense_length
from rstar2.analysis.words import find_words, words_of_tokens
from rstar2.errors import UserError
from rstar2.records import ToolResult, ToolStatus, Trace

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("values", "high"),
    [
        ([5.0, 1.0, 2.0, 3.0, 4.0], [0]),
        ([1.0, 5.0, 5.0, 5.0, 1.0], [1]),  # of equal ones the earlier
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [4, 5]),  # ⌈1.2⌉
        ([0.0, 0.0, 0.0], []),  # certainty is never high
        ([0.1], [0]),
    ],
)
def test_the_highest_fifth(values: list[float], high: list[int]) -> None:
    assert np.flatnonzero(find_high(np.array(values))).tolist() == high


def bits(text: str) -> np.ndarray:
    return np.array([character == "#" for character in text])


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("########", 8),
        ("#.#.#.#.", 7),  # up to the last high one
        ("#.#.#...", 0),  # 3 of 8
        ("#######", 0),  # too short to tell
        ("########........", 8),  # the last dense window is tokens 4 to 11
        ("#.#.#.#.#.#.#.......", 13),
        ("........########", 0),  # dense, but not right after the response
    ],
)
def test_a_dense_run(text: str, length: int) -> None:
    assert dense_length(bits(text)) == length


def test_words_sentences_and_cues() -> None:
    words = find_words("So x_1 = \\frac{1}{3.5} holds. But before that, let’s Double-Check:\nrerun</reason>naïve")
    facts = [(word.text, word.opens_sentence, word.is_cue) for word in words]
    assert facts == [
        ("so", True, False),
        ("x", False, False),
        ("holds", False, False),
        ("but", True, True),
        ("before", False, True),
        ("that", False, False),
        ("let's", False, False),
        ("double-check", False, True),
        ("rerun", True, True),
        ("naïve", True, False),
    ]


def test_tokens_and_the_words_that_they_are_part_of() -> None:
    pieces = ["dou", "ble", "-", "", "check it", " 7"]
    assert words_of_tokens(pieces, find_words("".join(pieces))) == [[0], [0], [0], [], [0, 1], []]


HOT, COLD = 2.0, 0.1


def two_turns(texts: HandTexts, result: ToolResult = NAME_ERROR) -> Trace:
    """25 tokens, of which the 5 hot ones are high: 1 in the first turn, 4 of the first 8 after the response."""
    first = texts.turn(
        'Sum|.| Wait|, run|<tool_call>|{"arguments": {"code": "|s|um|"}}|</tool_call>|<eos>',
        [COLD, COLD, HOT, *[COLD] * 8],
        calls=(make_call("sum"),),
        results=(result,),
    )
    second = texts.turn(
        "The| name| is| wrong|,| so| I| re|run| it|</reason>|<answer>|5|</answer>",
        [HOT, COLD, HOT, HOT, COLD, HOT, *[COLD] * 8],
    )
    return make_trace(first, second)


def test_one_trace_token_by_token() -> None:
    texts = HandTexts()
    tokens = examine(two_turns(texts), texts)
    assert tokens is not None
    first, second = tokens.turns
    assert np.flatnonzero(first.is_high).tolist() == [2]
    assert np.flatnonzero(second.is_high).tolist() == [0, 2, 3, 5]
    assert (first.follows, second.follows) == (None, Response.FAILED)
    assert first.kinds[2] is TokenKind.FORKING
    assert [place for place, kind in enumerate(second.kinds) if kind is TokenKind.REFLECTION] == [0, 2, 3, 5]
    assert tokens.num_misread_turns == 0


def test_every_number_of_an_analysis() -> None:
    texts = HandTexts()
    analysis = analyze([two_turns(texts)], texts)
    assert (analysis.num_traces, analysis.num_measured_traces, analysis.notes) == (1, 1, ())
    assert analysis.entropy is not None
    whole = analysis.entropy.all_tokens
    assert (whole.num_tokens, whole.num_high) == (25, 5)
    assert whole.mean == pytest.approx((5 * HOT + 20 * COLD) / 25)
    assert whole.quantiles == pytest.approx((COLD, COLD, COLD, COLD, HOT))
    counts = {found: (s.num_tokens, s.num_high) for found, s in analysis.entropy.by_class.items()}
    assert counts == {
        TokenClass.REASONING: (4, 1),
        TokenClass.AFTER_RESPONSE: (10, 4),
        TokenClass.CODE: (2, 0),
        TokenClass.CALL_SYNTAX: (4, 0),
        TokenClass.ANSWER: (3, 0),
        TokenClass.MARKUP: (2, 0),
    }
    forking, reflection = analysis.kinds[TokenKind.FORKING], analysis.kinds[TokenKind.REFLECTION]
    assert [(word.text, word.count, word.num_occurrences, word.mean_value) for word in forking.words] == [
        ("wait", 1, 1, HOT)
    ]
    assert [phrase.text for phrase in forking.phrases] == ["wait run"]
    assert (forking.num_tokens, reflection.num_tokens) == (1, 4)
    assert [word.text for word in reflection.words] == ["is", "so", "the", "wrong"]
    (summary,) = analysis.traces
    assert (summary.num_tokens, summary.mean, summary.threshold) == (25, pytest.approx(whole.mean), HOT)
    assert summary.forking == ((0, 2),)
    assert summary.reflection == ((1, 0), (1, 2), (1, 3), (1, 5))


def test_a_word_of_several_tokens_counts_once_with_its_highest_value() -> None:
    texts = HandTexts()
    turn = texts.turn("Re|run| it| now| a| b| c| d| e| f", [1.0, 3.0, *[COLD] * 8])
    (word,) = analyze([make_trace(turn)], texts).kinds[TokenKind.FORKING].words
    assert (word.text, word.count, word.mean_value) == ("rerun", 1, 3.0)


def test_a_high_token_inside_a_sentence_is_neither_and_code_never_is() -> None:
    texts = HandTexts()
    inside = texts.turn("we| see| that| it| is", [COLD, COLD, COLD, HOT, COLD])
    code = texts.turn('<tool_call>|{"arguments": {"code": "|Wait|"}}|</tool_call>', [COLD, COLD, HOT, COLD, COLD])
    kinds = analyze([make_trace(inside), make_trace(code)], texts).kinds
    assert (kinds[TokenKind.FORKING].num_tokens, kinds[TokenKind.REFLECTION].num_tokens) == (0, 0)


def test_entropy_around_responses_failed_ones_apart() -> None:
    texts = HandTexts()

    def pair(before: float, after: float, result: ToolResult) -> Trace:
        turn = texts.turn("a|b", [9.0, before], calls=(make_call("x"),), results=(result,))
        return make_trace(turn, texts.turn("c|d", [after, 7.0]))

    traces = [pair(1.0, 2.0, OK), pair(2.0, 4.0, ToolResult(ToolStatus.NO_OUTPUT)), pair(5.0, 6.0, NAME_ERROR)]
    good, bad = analyze(traces).around_responses
    assert (good.response, good.num_responses) == (Response.SUCCESSFUL, 2)
    points = {point.offset: point for point in good.points}
    assert list(points) == [-2, -1, 0, 1]
    assert (points[-1].mean, points[0].mean, points[0].num_responses) == (1.5, 3.0, 2)
    margin = 1.96 * np.sqrt(2.0) / np.sqrt(2)  # s = √((1+1)/1) over √n
    assert (points[0].low, points[0].high) == pytest.approx((3.0 - margin, 3.0 + margin))
    assert (bad.response, [(p.mean, p.low, p.high) for p in bad.points if p.offset == 0]) == (
        Response.FAILED,
        [(6.0, 6.0, 6.0)],
    )


def test_a_run_without_entropies_says_so_and_surprisal_is_labelled() -> None:
    texts = HandTexts()
    trace = make_trace(texts.turn("Wait| a| b| c| d", (), log_probs=(-3.0, -0.1, -0.1, -0.1, 0.0)))
    analysis = analyze([trace], texts)
    assert (analysis.entropy, analysis.kinds, analysis.num_measured_traces) == (None, {}, 0)
    assert "1 of 1 traces hold no entropies" in analysis.notes[0]
    other = analyze([trace], texts, Measure.SURPRISAL)
    assert other.entropy is not None
    assert other.entropy.all_tokens.mean == pytest.approx(3.3 / 5)
    assert other.kinds[TokenKind.FORKING].words[0].mean_value == 3.0
    assert any("not entropies" in note for note in other.notes)


def test_a_trace_with_entropies_in_some_turns_only_is_left_out() -> None:
    texts = HandTexts()
    analysis = analyze([make_trace(texts.turn("a|b"), texts.turn("c", ()))], texts)
    assert (analysis.num_traces, analysis.num_measured_traces) == (1, 0)


def test_without_texts_there_are_no_classes_but_all_the_rest() -> None:
    analysis = analyze([two_turns(HandTexts())])
    assert analysis.entropy is not None
    assert (analysis.entropy.by_class, analysis.kinds, analysis.has_texts) == ({}, {}, False)
    assert analysis.entropy.all_tokens.num_high == 5
    assert len(analysis.around_responses) == 1


def test_no_traces() -> None:
    analysis = analyze([])
    assert (analysis.num_traces, analysis.entropy, analysis.notes) == (0, None, ("There are no traces.",))


def test_another_models_tokenizer_is_refused() -> None:
    texts, others = HandTexts(), HandTexts()
    trace = two_turns(texts)
    others.ids([f"w{number}" for number in range(100)])
    with pytest.raises(UserError, match="2 of 2 turns read otherwise"):
        analyze([trace], others)


def byte_level_tokenizer(path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(["double-check the double-check, then rerun"] * 5, trainer)
    tokenizer.save(str(path))
    return path


def test_pieces_of_a_byte_level_tokenizer_join_to_the_text(tmp_path: Path) -> None:
    path = byte_level_tokenizer(tmp_path / "tokenizer.json")
    from tokenizers import Tokenizer

    text = "double-check 数 🙂 rerun<eos>"
    ids = Tokenizer.from_file(str(path)).encode(text).ids
    texts = TokenizerFile(path)
    pieces = texts.pieces(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert pieces[-1] == "<eos>"
    assert "🙂" in pieces, "a character of several tokens belongs to the last of them"
    cut = Tokenizer.from_file(str(path)).encode("a🙂").ids[:-1]
    assert "".join(texts.pieces(cut)).startswith("a\ufffd")
    with pytest.raises(UserError, match="a trace holds id 99999"):
        texts.pieces([99999])


def test_where_the_tokenizer_is_looked_for(tmp_path: Path) -> None:
    assert find_token_texts(tmp_path, None)[0] is None
    assert "--tokenizer" in find_token_texts(tmp_path, None)[1]
    with pytest.raises(UserError, match="there is no such file"):
        find_token_texts(tmp_path, tmp_path / "nowhere")
    (tmp_path / "tokenizer").mkdir()
    byte_level_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    assert find_token_texts(tmp_path, None)[0] is not None
    assert find_token_texts(tmp_path / "other", tmp_path / "tokenizer")[0] is not None
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="is not a tokenizer"):
        find_token_texts(tmp_path, tmp_path / "broken.json")
