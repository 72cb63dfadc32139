"""`rstar2 train` before anything is trained: recipes shown, mistakes named, exit codes; and what a terminal shows."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from rstar2.cli.main import app
from rstar2.cli.train import _solve_hint
from rstar2.cli.train_display import CURVES, Lines, LiveView, Progress
from rstar2.config import load_recipe, parse_recipe
from rstar2.data.mistakes import MAX_SHOWN
from rstar2.errors import UserError

pytestmark = pytest.mark.unit

runner = CliRunner()


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set is here, and the working directory is empty."""
    monkeypatch.setenv("RSTAR2_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RSTAR2_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FEWER = [argument for name in ("format", "train", "held_out") for argument in ("--set", f"data.{name}.num_problems=6")]


def test_a_dry_run_shows_the_recipe_in_full_with_overrides() -> None:
    path = "quickstart"
    result = runner.invoke(app, ["train", path, "--dry-run", *FEWER])
    assert result.exit_code == 0, result.output
    assert parse_recipe(result.stdout) == load_recipe(path, FEWER[1::2])
    assert parse_recipe(result.stdout).data["train"].num_problems == 6


@pytest.mark.parametrize("name", ["smollm2-1gpu", "qwen-coder-1gpu", "qwen3-14b-64gpu"])
def test_a_dry_run_names_every_set_that_is_not_here(name: str) -> None:
    recipe = load_recipe(name)
    fewer = [
        argument
        for set_name, data_set in recipe.data.items()
        if data_set.kind == "procedural"
        for argument in ("--set", f"data.{set_name}.num_problems=20")
    ]
    result = runner.invoke(app, ["train", name, "--dry-run", *fewer])
    used = {*(recipe.sft.data if recipe.sft else ()), *(name for stage in recipe.stages for name in stage.data)}
    files = {recipe.data[name].source.removeprefix("file:") for name in used if recipe.data[name].kind == "file"}
    benchmarks = set(recipe.eval.benchmarks) - set(recipe.data)
    assert files and benchmarks
    assert isinstance(result.exception, UserError)
    lines = str(result.exception).splitlines()[1:]
    wanted = [
        *(f"data file {file} is not there" for file in files),
        *(f"rstar2 data get {each}" for each in benchmarks),
    ]
    assert len(lines) == len(wanted)
    assert all(any(words in line for line in lines) for words in wanted), lines


OWN_TASK = """
from rstar2.environments import Task

class Pens(Task):
    def prompt(self, row):
        return f"Room {row['room']} needs pens."

    def reset(self, colour: str):
        self.wanted = colour

    def get_reward(self):
        return 1.0

def reward(row, trace):
    return 1.0
"""


def own_task(folder: Path, source: str, *rows: str) -> list[str]:
    """The arguments that train the quickstart on these rows, in an environment of a file beside them."""
    (folder / "task.py").write_text(OWN_TASK)
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    sets = [f"environment.source='{source}'", "data.train.source='file:rows.jsonl'", "data.format.num_problems=6"]
    sets += ["data.train.num_problems=100", "eval.benchmarks=[]"]
    return ["train", "quickstart", "--dry-run", *(argument for each in sets for argument in ("--set", each))]


@pytest.mark.parametrize(
    ("source", "row", "said"),
    [
        (
            "file:task.py:Pens",
            '{"room": 1}',
            r"task.py, line \d+: Pens.reset needs the column 'colour'; the row has room",
        ),
        ("file:task.py:Pens", '{"room": 1, "colour": 5}', "Pens.reset cannot take 5 as column colour: .*valid string"),
        ("file:task.py:Pens", '{"colour": "red"}', r"Pens.prompt: .*task.py, line \d+: KeyError: 'room'"),
        ("file:task.py:reward", '{"text": "Hi"}', "needs one of the columns prompt, question, problem; it has text"),
        ("file:task.py:reward", '{"prompt": [{"role": "user"}]}', "a message must be {role, content}"),
        ("code", '{"prompt": "Add.", "tests": "no list"}', "column 'tests'"),
    ],
)
def test_a_dry_run_names_every_row_that_the_environment_cannot_use(
    empty_machine: Path, source: str, row: str, said: str
) -> None:
    good = '{"room": 1, "colour": "red", "prompt": "Hi.", "tests": ["assert f(1) == 1"]}'
    result = runner.invoke(app, own_task(empty_machine, source, good, row, "", good[:-1] + ', "more": 1}', row))
    assert isinstance(result.exception, UserError)
    heading, *lines = str(result.exception).splitlines()
    assert heading.endswith("has 2 mistakes:")
    for line, number in zip(lines, (2, 5), strict=True):
        assert re.search(rf"rows.jsonl, line {number}: .*{said}", line), line


def test_a_dry_run_of_a_faulty_recipe_takes_rows_for_those_of_its_environment(empty_machine: Path) -> None:
    arguments = own_task(empty_machine, "file:task.py:Pens", '{"room": 1, "colour": "red"}', "no json")
    result = runner.invoke(app, [*arguments, "--set", "train.lr=-1"])
    assert isinstance(result.exception, UserError)
    heading, *lines = str(result.exception).splitlines()
    assert heading.endswith("has 2 mistakes:"), lines
    assert "train.lr must be" in lines[0] and "rows.jsonl, line 2: not JSON" in lines[1]


def test_a_dry_run_lists_the_first_bad_rows_and_counts_the_others(empty_machine: Path) -> None:
    rows = (f'{{"room": {number}}}' for number in range(MAX_SHOWN + 5))
    result = runner.invoke(app, own_task(empty_machine, "file:task.py:Pens", *rows))
    _, *lines = str(result.exception).splitlines()
    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1].strip() == "data.train: 5 more mistakes, not listed"


def test_a_dry_run_looks_only_at_rows_that_the_run_would_use(empty_machine: Path) -> None:
    (empty_machine / "unused.jsonl").write_text('{"room": 1}\n')
    arguments = own_task(empty_machine, "file:task.py:Pens", '{"room": 1, "colour": "red"}')
    result = runner.invoke(app, [*arguments, "--set", "data.held_out.source='file:unused.jsonl'"])
    assert result.exit_code == 0, result.output


def test_a_dry_run_ends_with_what_would_be_trained(empty_machine: Path) -> None:
    rows = ('{"room": 1, "colour": "red"}', '{"room": 2, "colour": "red"}')
    result = runner.invoke(app, own_task(empty_machine, "file:task.py:Pens", *rows))
    assert result.exit_code == 0, result.output
    *_, what, parts = result.stderr.splitlines()
    assert what == (
        "no mistakes found: this would train tiny:qwen3 in the environment file:task.py:Pens, on this machine (its CPU)"
    )
    assert parts.startswith("warm-up: 6 conversations; stage ")
    assert "2 problems (train)" in parts
    assert parse_recipe(result.stdout).environment.source == "file:task.py:Pens"


def test_a_dry_run_names_a_missing_file_of_the_environment_once() -> None:
    sets = ["environment.source='file:gone.py:Gone'", "data.train.source='environment'"]
    result = runner.invoke(app, ["train", "quickstart", "--dry-run", "--set", sets[0], "--set", sets[1]])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).count("there is no file") == 1


@pytest.mark.parametrize(
    ("row", "command"),
    [
        ({}, 'rstar2 solve --model run/final "…"'),
        ({"question": "1+1?"}, 'rstar2 solve --model run/final "…"'),
        ({"kg": 3, "city": "Rome"}, """rstar2 solve --recipe run '{"kg": 3, "city": "Rome"}'"""),
        ({"text": "x" * 300}, "rstar2 solve --recipe run '{…}'"),
    ],
)
def test_the_last_line_of_a_run_asks_as_its_environment_reads(row: dict[str, Any], command: str) -> None:
    assert _solve_hint(Path("run"), row) == command


@pytest.mark.parametrize("recipe_is_faulty", [False, True])
def test_a_dry_run_names_all_mistakes_of_recipe_and_data(empty_machine: Path, recipe_is_faulty: bool) -> None:
    (empty_machine / "problems.jsonl").write_text('{"problem": "p"}\n{"problem": "p", "answer": 1}\nno json\n')
    (empty_machine / "talk.jsonl").write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    overrides = [
        "data.train.source='file:problems.jsonl'",
        "data.format.source='file:talk.jsonl'",
        "data.held_out.source='procedural:nosuch'",
    ]
    wanted = [
        "problems.jsonl, line 1: no column for the answer",
        "problems.jsonl, line 3: not JSON",
        "talk.jsonl, line 1: no message is the assistant's",
        "there is no procedural task 'nosuch'",
    ]
    if recipe_is_faulty:
        overrides += ["train.lr=-1", "stages.hard.data=['trian']"]
        wanted += ["train.lr must be", 'did you mean "train"?']
    sets = [argument for override in overrides for argument in ("--set", override)]
    result = runner.invoke(app, ["train", "quickstart", "--dry-run", *sets])
    assert isinstance(result.exception, UserError)
    assert result.stdout == ""
    _, *lines = str(result.exception).splitlines()
    assert len(lines) == len(wanted), lines
    for words in wanted:
        assert any(words in line for line in lines), (words, lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a recipe to start a run, or --resume"),
        (["a.toml", "--resume", "runs/x"], "give a recipe to start a run, or --resume"),
        (["--resume", "runs/x", "--set", "train.lr=1"], "leave --set, --run and --dry-run out"),
        (["--resume", "runs/x", "--run", "y"], "leave --set, --run and --dry-run out"),
        (["--resume", "runs/x", "--dry-run"], "leave --set, --run and --dry-run out"),
        (["missing.toml", "--dry-run"], r"missing\.toml"),
        (["quickstart", "--threads", "100000"], r"--threads of 100000 is more than the \d+ cores"),
        (["quickstart", "--dry-run", "--set", "train.learning_rate=1"], "learning_rate"),
        (
            ["quickstart", "--dry-run", *FEWER, "--set", "algo.advantage=nowhere:x"],
            "algo.advantage: advantage 'nowhere:x' cannot be loaded: .*PYTHONPATH",
        ),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        runner.invoke(app, ["train", *arguments], catch_exceptions=False)


def test_a_mistake_is_a_sentence_and_the_exit_code_of_mistakes() -> None:
    done = subprocess.run([sys.executable, "-m", "rstar2", "train"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: give a recipe")
    assert "Traceback" not in done.stderr


def test_what_a_terminal_shows() -> None:
    time_s = 0.0
    progress = Progress(lambda: time_s)
    console = Console(width=80, force_terminal=False, record=True)
    lines = Lines(console)
    for observer in (progress, lines):
        observer.phase("first", 10, 2)
        observer.rollouts(5)
        observer.metrics(3, "first", {"accuracy": 0.25, "loss": 0.1, "tokens_per_s": 1234.0, "entropy": 0.5})
        observer.metrics(3, "first", dict.fromkeys((key for key, _, _ in CURVES), 0.25))
        observer.metrics(4, "first", {"accuracy": 0.75, "loss": 0.2, "tokens_per_s": 1234.0, "entropy": 0.5})
        observer.metrics(4, "eval:first/held_out", {"accuracy": 0.625})
        observer.say("half way")
    console.print(LiveView(progress))
    shown = console.export_text()
    for words in ("first", "75%", "1,234", "held_out", "62.5%", "half way"):
        assert words in shown, shown
    assert all(len(line) <= 80 for line in shown.splitlines()), shown
    assert (progress.num_done, progress.num_steps) == (5, 10)


def test_a_terminal_shows_the_reward_where_it_is_not_the_accuracy() -> None:
    def shown(*rewards: float) -> tuple[str, str]:
        printed, drawn = (Console(width=80, force_terminal=False, record=True) for _ in range(2))
        lines, progress = Lines(printed), Progress()
        for step, reward in enumerate(rewards):
            for observer in (lines, progress):
                observer.metrics(step, "first", {"accuracy": 0.25, "reward_mean": reward})
        drawn.print(LiveView(progress))
        return printed.export_text(), drawn.export_text()

    for text in shown(0.25, 0.625):
        assert "0.625" in text
        assert "accuracy" in text
    for text in shown(0.25, 0.25):
        assert "reward" not in text
        assert "25%" in text


def test_inside_a_step_a_terminal_shows_what_is_waited_for() -> None:
    time_s = 0.0
    progress = Progress(lambda: time_s)
    assert progress.waiting is None
    progress.phase("first", 10, 0)
    progress.waits_for("rollouts")
    progress.rollouts_begun(384)
    time_s = 41.0
    progress.rollouts(212)
    assert progress.waiting == "waiting for rollouts, 212 of 384 ended, 0:41"
    console = Console(width=80, force_terminal=False, record=True)
    console.print(LiveView(progress))
    assert "212 of 384" in console.export_text()
    progress.rollouts(172)
    progress.rollouts_begun(16)  # some groups taught nothing
    progress.waits_for("the update")
    assert progress.waiting == "waiting for the update, 0:00"
    progress.rollouts(4)
    progress.metrics(1, "first", {"accuracy": 0.25})
    progress.waits_for("rollouts")
    assert progress.waiting == "waiting for rollouts, 0 of 12 ended, 0:00"


def test_without_a_terminal_a_long_wait_is_a_line_now_and_then() -> None:
    time_s = 0.0
    console = Console(width=80, force_terminal=False, record=True)
    lines = Lines(console, lambda: time_s)

    def printed_at(now_s: float) -> str:
        nonlocal time_s
        time_s = now_s
        lines.tick()
        return console.export_text()

    lines.waits_for("the model, the engine and the sandbox to start")
    assert printed_at(3.0) == ""
    assert printed_at(11.0) == "[0:11]   waiting for the model, the engine and the sandbox to start, 0:11\n"
    assert printed_at(15.0) == ""
    lines.phase("first", 10, 0)
    lines.waits_for("rollouts")
    lines.rollouts_begun(384)
    lines.rollouts(2)
    console.export_text()
    assert printed_at(35.0) == "[0:35]   waiting for rollouts, 2 of 384 ended, 0:20\n"
    lines.phase("eval:first", 480, 0)
    lines.rollouts(100)
    console.export_text()
    assert printed_at(60.0) == "[1:00]   eval:first: 100 of 480 rollouts done\n"
    lines.phase("sft", 375, 0)
    lines.metrics(20, "sft", {"loss": 1.0})
    console.export_text()
    assert printed_at(80.0) == "[1:20]   sft: 21 of 375 steps done\n"
