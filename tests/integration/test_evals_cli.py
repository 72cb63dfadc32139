"""`rstar2 eval` from the command line: run, resume, regrade, tables, and what it says to mistakes."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rstar2.agent import load_chat, write_format
from rstar2.cli.eval import eval_command
from rstar2.config import EnvironmentSection
from rstar2.errors import InfrastructureError, UserError
from rstar2.models.tiny import TinySizes, build_tiny
from rstar2.records import RunView

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cold_sandboxes")]

app = typer.Typer()
app.command()(eval_command)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RSTAR2_DATA", raising=False)
    rows = [{"id": f"a{n}", "problem": f"What is {n}?", "answer": str(n)} for n in (7, 8, 9, 10)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "aime24.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "script.txt").write_text("Seven.</reason><answer>\\boxed{7}</answer>\n")
    return tmp_path


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.stdout


COMMON = ("--script", "script.txt", "--data-dir", "data", "--bench", "aime24,procedural:gcd+lcm", "--samples", "2")


def test_a_run_its_files_and_its_json(folder: Path) -> None:
    said = json.loads(run(*COMMON, "--run", "here", "--problems", "4", "--json", "--markdown", "out.md"))

    assert said["results"]["aime24"]["accuracy"] == 0.25
    assert said["results"]["aime24"]["pass_at"] == {"1": 0.25, "2": 0.25}
    assert said["published"]["rStar2-Agent-14B"] == {"aime24": 80.6}
    assert said["deviations"] == ["samples 2 (report: 16)", "at most 4 problems of a benchmark"]
    text = (folder / "out.md").read_text()
    assert "| rStar2-Agent-14B | 80.6 |" in text
    assert "| script.txt (here) | 25.0 |" in text
    assert "Deviates from the report's protocol: samples 2 (report: 16)" in text
    assert len((folder / "here/traces/step-000000.jsonl").read_text().splitlines()) == 16


def test_a_cut_run_resumes_and_is_graded_again(folder: Path) -> None:
    run(*COMMON, "--run", "here", "--problems", "4")
    traces = folder / "here/traces/step-000000.jsonl"
    lines = traces.read_text().splitlines(keepends=True)
    traces.write_text("".join(lines[:5]))

    cut = json.loads(run("--regrade", "here", "--json", exit_code=1))
    assert cut["results"]["aime24"]["num_missing"] == 3
    assert traces.read_text().splitlines(keepends=True) == lines[:5], "regrading changes nothing"

    resumed = json.loads(run("--resume", "here", "--json"))
    assert resumed["results"]["aime24"]["num_scored"] == 8
    ids = [json.loads(line)["id"] for line in traces.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 16
    assert json.loads(run("--regrade", "here", "--json"))["results"]["aime24"]["accuracy"] == 0.25


TREES = ("--script", "script.txt", "--data-dir", "data", "--bench", "aime24", "--problems", "2", "--run", "here")


def script_of_calls(folder: Path) -> None:
    """A call and an answer; for the script a branch is a new conversation, so it calls once more."""
    call = json.dumps({"name": "execute_python_code_with_standard_io", "arguments": {"code": "print(7)", "input": ""}})
    (folder / "script.txt").write_text(f"</reason><tool_call>{call}</tool_call>\n===\n<answer>\\boxed{{7}}</answer>")


def test_trees_spend_their_tokens_and_a_torn_one_is_sampled_again(folder: Path) -> None:
    script_of_calls(folder)
    flat = json.loads(run(*TREES, "--samples", "2", "--json"))
    num_generated = flat["results"]["aime24"]["mean_generated_tokens"]
    (folder / "here").rename(folder / "flat")
    trace, *_ = RunView(folder / "flat").traces(0)
    budget = round(num_generated) + 2 * len(trace.turns[1].token_ids)
    said = json.loads(run(*TREES, "--tree", "8", "--tree-tokens", str(budget), "--json"))
    result, protocol = said["results"]["aime24"], said["protocol"]
    assert (result["num_missing"], result["num_undecided"], result["num_faults"]) == (0, 0, 0)
    assert result["num_scored"] == 2 * (2 + 2), "the roots of each problem, and two leaves that were expected to fit"
    assert result["majority_at_k"] is not None
    assert result["mean_generated_tokens"] == 2 * num_generated, "the script says as much again in a branch"
    assert (protocol["num_samples"], protocol["tree"]["num_roots"]) == (8, 2)
    assert any("trees" in deviation for deviation in said["deviations"])

    traces = folder / "here/traces/step-000000.jsonl"
    lines = traces.read_text().splitlines(keepends=True)
    assert len(lines) == 16, "those beyond the budget included"
    traces.write_text("".join(lines[:5]))
    resumed = json.loads(run("--resume", "here", "--json"))["results"]["aime24"]
    assert {**resumed, "seconds": 0, "mean_rollout_seconds": 0} == {**result, "seconds": 0, "mean_rollout_seconds": 0}
    regraded = json.loads(run("--regrade", "here", "--json"))["results"]["aime24"]
    assert (regraded["num_scored"], regraded["accuracy"]) == (result["num_scored"], result["accuracy"])


@pytest.mark.usefixtures("folder")
def test_the_tables_stand_beside_the_report() -> None:
    shown = run(*COMMON, "--run", "here", "--problems", "4")
    assert "rStar2-Agent-14B" in shown
    assert "Deviates from the report's protocol" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--script", "script.txt"), "--bench is needed"),
        (("--script", "script.txt", "--bench", "math500"), "rstar2 data get math500"),
        (("--script", "script.txt", "--bench", "mathh500"), "math500"),
        (("--resume", "here", "--regrade", "there"), "exclude each other"),
        (("--resume", "here", "--samples", "3"), "leave out --samples"),
        (("--resume", "data"), "not a run directory"),
        ((*COMMON, "--no-tools", "--tool", "jupyter_code"), "exclude each other"),
        ((*COMMON, "--judge-url", "http://x"), "belong together"),
        ((*COMMON, "--tree", "4"), "exclude each other"),
        ((*COMMON, "--tree-tokens", "4"), "needs --tree"),
    ],
)
def test_mistakes_are_sentences_and_leave_no_run(arguments: tuple[str, ...], said: str, folder: Path) -> None:
    with pytest.raises(UserError, match=said):
        run(*arguments)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("options", [("--model", "nosuch"), ("--model", "."), ("--script", "nosuch.txt")])
def test_what_cannot_be_loaded_leaves_no_run_behind(folder: Path, options: tuple[str, str]) -> None:
    with pytest.raises(UserError):
        run("--bench", "procedural:gcd", "--problems", "1", *options)
    with pytest.raises(UserError):
        run("--bench", "procedural:gcd", "--problems", "1", "--run", "here", *options)
    assert not (folder / "runs").exists()
    assert not (folder / "here").exists()


def test_a_model_is_given_the_tool_that_it_was_trained_with(folder: Path) -> None:
    build_tiny(folder / "model", "llama", TinySizes(1, 16, 2, 1, 400, 64), ["some words"], seed=0)
    write_format(folder / "model", load_chat(folder / "model"), EnvironmentSection(tools=("jupyter_code",)))
    call = json.dumps({"name": "jupyter_code", "arguments": {"code": "3 + 4"}})
    (folder / "script.txt").write_text(f"</reason><tool_call>{call}</tool_call>\n===\n<answer>\\boxed{{7}}</answer>")
    options = ("--script", "script.txt", "--model", "model", "--samples", "1", "--problems", "1", "--run", "here")
    run("--bench", "procedural:gcd", *options)
    view = RunView(folder / "here")
    (trace,) = (trace for step in view.trace_steps() for trace in view.traces(step))
    assert [result.text for result in trace.results] == ["7"]


RECIPE = """
name = "mine"
seed = 3
[model]
name = "auto"
[engine]
kind = "scripted"
script = "script.txt"
[agent]
max_tool_output_tokens = 64
[eval]
benchmarks = ["aime24", "held"]
num_samples = 3
max_turns = 2
max_response_tokens = 512
[data.held]
source = "procedural:gcd"
num_problems = 5
"""


def test_a_recipe_says_what_is_measured_and_how(folder: Path) -> None:
    (folder / "mine.toml").write_text(RECIPE)
    said = json.loads(run("--recipe", "mine.toml", "--data-dir", "data", "--run", "here", "--samples", "2", "--json"))
    assert {name: result["num_scored"] for name, result in said["results"].items()} == {"aime24": 8, "held": 10}
    assert (said["protocol"]["max_turns"], said["protocol"]["max_response_tokens"]) == (2, 512)
    assert said["protocol"]["max_tool_output_tokens"] == 64
    traces = folder / "here/traces/step-000000.jsonl"
    lines = traces.read_text().splitlines(keepends=True)
    traces.write_text("".join(lines[:-3]))
    assert json.loads(run("--resume", "here", "--json"))["results"].keys() == said["results"].keys()
    assert len(traces.read_text().splitlines()) == len(lines)


def test_a_sandbox_that_is_away_is_known_at_once(folder: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"http://127\.0\.0\.1:1"):
        run(*COMMON, "--sandbox", "http://127.0.0.1:1", "--run", "here")
    assert not (folder / "here").exists()
