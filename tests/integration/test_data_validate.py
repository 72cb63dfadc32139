"""Golds under the real grader: those that score, those that cannot, and the command's exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rstar2.cli.data import app
from rstar2.cli.output import ExitCode
from rstar2.data import FunctionCallTask, Grading, InstructionTask, validate
from rstar2.grading import Grader
from rstar2.records import Problem
from rstar2.sandbox import LocalExecutor

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

GOOD = (
    "42",
    "1,234",
    r"\frac{1}{2}",
    r"\left( 3, \frac{\pi}{2} \right)",
    "x^2+1",
    "5x - 7y + 11z + 4 = 0",
    r"\text{east}",
)
BAD = (r"\frac{1}{2", "}{")


async def test_golds_that_score_and_golds_that_cannot() -> None:
    problems = [Problem(gold, "p", gold) for gold in GOOD + BAD]
    done: list[None] = []
    async with LocalExecutor() as executor:
        failures = await validate(problems, Grading.ANSWER, Grader(executor), lambda: done.append(None))
    assert [failure.problem_id for failure in failures] == list(BAD)
    assert all("no_answer" in failure.reason for failure in failures)
    assert len(done) == len(problems)


async def test_what_other_graders_need_is_checked() -> None:
    def calls(name: str, *offered: str) -> Problem:
        task = FunctionCallTask("multiple", (), tuple({"name": each} for each in offered), ({name: {}},))
        return Problem(f"{name} of {len(offered)}", "p", "", metadata=task.metadata)

    def instructions(*names: str) -> Problem:
        return Problem(" ".join(names), "p", "", metadata=InstructionTask(names, ({},) * len(names)).metadata)

    async with LocalExecutor() as executor:
        grader = Grader(executor)
        sets = [calls("f", "f", "g"), calls("h", "f", "g"), calls("h", "f"), calls("h")]
        assert [each.problem_id for each in await validate(sets, Grading.CALLS, grader)] == ["h of 2", "h of 0"]
        checks = [instructions("punctuation:no_comma"), instructions(), instructions("no_comma")]
        assert [each.problem_id for each in await validate(checks, Grading.INSTRUCTIONS, grader)] == ["", "no_comma"]
        assert len(await validate([Problem("a", "", ""), Problem("b", "p", "")], Grading.JUDGE, grader)) == 1


def test_the_command_says_no_where_a_gold_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    for name, gold in (("aime24", "204"), ("aime25", r"\frac{1}{")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": name, "problem": "p", "answer": gold}) + "\n")
    runner = CliRunner()
    assert runner.invoke(app, ["validate", "aime24", "--data-dir", str(tmp_path)]).exit_code == ExitCode.OK
    result = runner.invoke(app, ["validate", "all", "--data-dir", str(tmp_path), "--json"])
    assert result.exit_code == ExitCode.NO
    reports = json.loads(result.stdout)
    assert [len(reports[name]["failures"]) for name in ("aime24", "aime25")] == [0, 1]
    assert "not on this machine: amc23" in result.stderr


def test_the_command_knows_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    asked, said, result = (
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "tool", "content": "4"},
    )
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "run", "arguments": "{}"}}]}
    tools = [{"name": "other"}]
    rows: list[dict[str, object]] = [
        {"id": "good", "messages": [asked, call, result, said]},
        {"id": "early", "messages": [asked, result, said]},
        {"id": "twice", "messages": [asked, call, result, result, said]},
        {"id": "unknown", "messages": [asked, call, result, said], "tools": tools},
        {"id": "empty", "messages": [asked, {"role": "assistant", "content": " "}]},
        {"id": "unasked", "messages": [said]},
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert done.exit_code == ExitCode.NO
    report = json.loads(done.stdout)[str(path)]
    assert report["num_conversations"] == len(rows)
    reasons = {failure["problem_id"]: failure["reason"] for failure in report["failures"]}
    assert list(reasons) == ["early", "twice", "unknown", "empty", "unasked"]
    assert "message 2 is a tool result" in reasons["early"]
    assert "message 4 is a tool result" in reasons["twice"]
    assert "calls run, which is not among the tools" in reasons["unknown"]
    path.write_text(json.dumps(rows[0]) + "\n")
    assert CliRunner().invoke(app, ["validate", str(path)]).exit_code == ExitCode.OK
