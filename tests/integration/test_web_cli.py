"""`rstar2 view` and `rstar2 report` as a user starts them."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import pytest
from typer.testing import CliRunner
from web_runs import write_small_run

from rstar2.cli.main import app
from rstar2.errors import UserError

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "examples" / "solve_script.txt"


def refusal(*arguments: str) -> str:
    outcome = CliRunner().invoke(app, list(arguments))
    assert isinstance(outcome.exception, UserError), outcome.output
    return str(outcome.exception)


def test_a_report_is_written(tmp_path: Path) -> None:
    write_small_run(tmp_path / "small")
    outcome = CliRunner().invoke(app, ["report", str(tmp_path / "small")])
    assert outcome.exit_code == 0, outcome.output
    assert (tmp_path / "small" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    outcome = CliRunner().invoke(app, ["report", str(tmp_path / "small"), "-o", str(tmp_path / "r.html")])
    assert outcome.exit_code == 0
    assert (tmp_path / "r.html").is_file()


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    assert "--demo" in refusal("view")
    assert "not a run directory" in refusal("view", str(tmp_path))
    assert "not a run directory" in refusal("report", str(tmp_path))
    assert "--host" in refusal("view", "--demo", "--host", "0.0.0.0", "--script", str(SCRIPT))


def test_the_demo_is_served_and_the_playground_solves() -> None:
    command = ["view", "--demo", "--port", "0", "--no-browser", "--script", str(SCRIPT)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from rstar2.cli.main import main; main()", *command], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert url is not None, said
        with urlopen(f"{url[0]}api/runs", timeout=240) as response:
            listing = json.load(response)
        assert [run["key"] for run in listing["runs"]] == ["demo"]
        assert listing["models"] == ["solve_script.txt"]
        client = openai.OpenAI(base_url=f"{url[0]}v1", api_key="none", max_retries=0, timeout=240)
        question: Any = {"role": "user", "content": "What is 7^2025 modulo 1000?"}
        answer = client.chat.completions.create(model="solve_script.txt", messages=[question])
        assert answer.choices[0].message.content == r"\boxed{807}"
        with pytest.raises(openai.NotFoundError, match="there is solve_script"):
            client.chat.completions.create(model="other", messages=[question])
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == 0
