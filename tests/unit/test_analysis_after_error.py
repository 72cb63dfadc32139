"""What the model does after an error, and how often calls fail in right and wrong traces."""

import pytest
from analysis_traces import NAME_ERROR, OK, OURS, TIMEOUT, TYPE_ERROR, calling_turn, make_trace, silent_turn

from rstar2.analysis import analyze
from rstar2.analysis.after_error import Reaction, are_nearly_same, error_signature, find_reactions
from rstar2.analysis.over_training import CallCount, StepErrors
from rstar2.records import Outcome, ToolCall, ToolResult, ToolStatus, Trace, Turn, Verdict

pytestmark = pytest.mark.unit

FIRST = "total = sum(range(10))\nprint(total * x)"
NEAR = "total = sum(range(10))\n\nprint(total * y)"
FAR = "from sympy import divisors\nfor d in divisors(360):\n    print(d)"


@pytest.mark.parametrize(
    ("turns", "outcome", "reaction"),
    [
        ((calling_turn(FIRST, OK),), Outcome.ANSWERED, Reaction.FIXED),
        ((calling_turn(NEAR, TYPE_ERROR),), Outcome.ANSWERED, Reaction.REPEATED),
        ((calling_turn(FAR, NAME_ERROR),), Outcome.ANSWERED, Reaction.REPEATED),
        ((calling_turn(FAR, TYPE_ERROR),), Outcome.ANSWERED, Reaction.NEW_ERROR),
        ((silent_turn(),), Outcome.ANSWERED, Reaction.GAVE_UP),
        ((silent_turn(),), Outcome.TRUNCATED, Reaction.CUT_OFF),
        ((), Outcome.TRUNCATED, Reaction.CUT_OFF),
        ((calling_turn(FAR, None),), Outcome.TURN_LIMIT, Reaction.CUT_OFF),
        ((calling_turn(FAR, OURS),), Outcome.INFRASTRUCTURE_FAULT, Reaction.CUT_OFF),
        ((silent_turn(), calling_turn(FAR, OK)), Outcome.ANSWERED, Reaction.FIXED),
    ],
)
def test_reactions(turns: tuple[Turn, ...], outcome: Outcome, reaction: Reaction) -> None:
    trace = make_trace(calling_turn(FIRST, NAME_ERROR), *turns, outcome=outcome)
    first = next(find_reactions(trace))
    assert (first.turn, first.status, first.reaction) == (0, ToolStatus.RAISED, reaction)


def test_calls_of_one_turn_are_one_attempt() -> None:
    several = Turn(
        (1,),
        (),
        "x",
        calling_turn("", OK).stop_reason,
        calls=(ToolCall("{"), ToolCall("[")),
        results=(ToolResult(ToolStatus.UNPARSABLE_CALL, "no"), TIMEOUT),
    )
    (found,) = find_reactions(make_trace(several, calling_turn(FAR, OK), silent_turn()))
    assert (found.status, found.reaction) == (ToolStatus.UNPARSABLE_CALL, Reaction.FIXED)


def test_counts_and_shares() -> None:
    fixed = make_trace(calling_turn(FIRST, NAME_ERROR), calling_turn(FAR, OK), silent_turn())
    stubborn = make_trace(calling_turn(FIRST, TIMEOUT), calling_turn(FIRST, TIMEOUT), silent_turn())
    errors = analyze([fixed, stubborn, make_trace(silent_turn())]).after_errors
    assert errors.num_errors == 3
    assert {reaction: count for reaction, count in errors.counts.items() if count} == {
        Reaction.FIXED: 1,
        Reaction.REPEATED: 1,
        Reaction.GAVE_UP: 1,
    }
    assert errors.share(Reaction.FIXED) == pytest.approx(1 / 3)
    assert list(errors.by_status) == [ToolStatus.RAISED, ToolStatus.TIMED_OUT]
    assert errors.by_status[ToolStatus.TIMED_OUT][Reaction.REPEATED] == 1


def test_near_and_far() -> None:
    assert are_nearly_same(FIRST, FIRST)
    assert are_nearly_same(FIRST, NEAR)
    assert not are_nearly_same(FIRST, FAR)
    assert are_nearly_same("a b", "a\n  b")
    assert not are_nearly_same("a b", "")


def test_numbers_in_an_error_are_all_the_same_and_names_are_not() -> None:
    def signature(text: str) -> tuple[ToolStatus, str]:
        return error_signature(ToolResult(ToolStatus.RAISED, text))

    assert signature("line 3\nIndexError: 7 at 0x7f3a") == signature("line 9\nIndexError: 12 at 0x11\n")
    assert signature("NameError: name 'x'") != signature("NameError: name 'y'")
    assert signature("") == (ToolStatus.RAISED, "")
    assert signature("same") != error_signature(ToolResult(ToolStatus.TIMED_OUT, "same"))


def scored(step: int, *results: ToolResult, reward: float | None = None, verdict: Verdict | None = None) -> Trace:
    turns = [calling_turn("x", result) for result in results]
    return make_trace(*turns, silent_turn(), step=step, reward=reward, verdict=verdict)


def test_tool_errors_over_training() -> None:
    rows = analyze(
        [
            scored(7, OK, OK, NAME_ERROR, TIMEOUT, reward=1.0),
            scored(2, OK, verdict=Verdict.RIGHT),
            scored(2, TIMEOUT, OURS, verdict=Verdict.NO_ANSWER),
            scored(2, NAME_ERROR, OK, verdict=Verdict.WRONG, reward=0.5),
            scored(2, NAME_ERROR, verdict=Verdict.UNDECIDED),
            scored(2, NAME_ERROR),
        ]
    ).over_training
    assert rows == (
        StepErrors(2, CallCount(1, 1, 0), CallCount(2, 3, 2), num_unscored=2),
        StepErrors(7, CallCount(1, 4, 2), CallCount(), num_unscored=0),
    )
    assert (rows[0].wrong.error_share, rows[1].right.error_share, rows[1].wrong.error_share) == (
        pytest.approx(2 / 3),
        0.5,
        None,
    )
