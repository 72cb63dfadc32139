"""The answer that most leaves of a tree give, and the command that asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.cli.solve_tree import vote
from rstar2.records import Outcome, StopReason, Trace, Turn
from rstar2.records.codec import decode

pytestmark = pytest.mark.unit

SCRIPT = Path(__file__).parents[2] / "examples" / "solve_script.txt"
TURN = Turn((1, 2, 3), (-1.0,) * 3, "text", StopReason.END_OF_TURN)
ROOT = Trace("a", "p", (1,), "", (TURN, TURN), Outcome.ANSWERED, answer="7")


async def test_the_most_frequent_answer_wins_and_the_first_of_equals() -> None:
    other = replace(ROOT, id="b", answer="8")
    branch = replace(ROOT, id="c", answer="8", parent="a", num_shared_turns=1)
    chosen = await vote([ROOT, other, branch], None)
    assert (chosen.trace, chosen.num_votes, chosen.num_generated, chosen.num_shared) == (other, 2, 15, 3)
    assert (await vote([ROOT, other], None)).trace is ROOT
    silent = replace(ROOT, answer=None)
    chosen = await vote([silent], None)
    assert (chosen.trace, chosen.num_votes) == (silent, 0)


async def test_spellings_of_one_answer_are_one_vote() -> None:
    half, other = replace(ROOT, id="b", answer="0.5"), replace(ROOT, id="c", answer=r"\frac{1}{2}")

    async def never(_answer: str, _gold: str) -> bool:
        return False

    chosen = await vote([ROOT, half, other], never)
    assert (chosen.trace, chosen.num_votes) == (half, 2)
    assert (await vote([ROOT, half, other], None)).trace is ROOT


def test_solve_prints_each_attempt_and_the_vote() -> None:
    result = CliRunner().invoke(app, ["solve", "7^2025 mod 1000?", "--script", str(SCRIPT), "--tree", "4", "--json"])
    assert result.exit_code == 0, result.output
    leaves = [decode(Trace, line.encode()) for line in result.stdout.splitlines() if line.startswith("{")]
    assert [leaf.parent for leaf in leaves] == ["", "asked-000", "asked-000", "asked-000"]
    assert {leaf.answer for leaf in leaves} == {"807"}
    assert "4 of 4 attempts agree" in result.stderr


def test_solve_spends_no_more_tokens_than_it_may() -> None:
    command = ["solve", "7^2025 mod 1000?", "--script", str(SCRIPT), "--tree", "4"]
    result = CliRunner().invoke(app, [*command, "--tree-tokens", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert "1 of 1 attempts agree" in result.stderr, "the roots are sampled in any case"
    refused = CliRunner().invoke(app, [*command[:-2], "--tree-tokens", "1"])
    assert refused.exit_code != 0
