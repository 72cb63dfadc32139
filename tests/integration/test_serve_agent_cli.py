"""`rstar2 serve --agent` as a process, and the `openai` package as people use it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from typer.testing import CliRunner

from model_server import ModelServer, serving
from rstar2.cli.main import app
from rstar2.errors import UserError

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).parents[2] / "examples" / "solve_script.txt"


@pytest.fixture(scope="module")
def script_server() -> Iterator[ModelServer]:
    with serving("--agent", "--script", str(SCRIPT)) as server:
        yield server


def test_the_sync_client_needs_no_change(script_server: ModelServer) -> None:
    client = openai.OpenAI(base_url=f"{script_server.root}/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    question: Any = {"role": "user", "content": "What is 7^2025 modulo 1000?"}
    answer = client.chat.completions.create(model=model, messages=[question])
    assert answer.choices[0].message.content == r"\boxed{807}"
    with client.chat.completions.stream(model=model, messages=[question]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == r"\boxed{807}"
    assert "pow(7, 2025, 1000)" in final.choices[0].message.model_dump()["reasoning_content"]
    plain = client.completions.create(model=model, prompt="x", max_tokens=8)
    assert plain.choices[0].text, "the model itself is still there"


def test_options_of_an_agent_need_one() -> None:
    outcome = CliRunner().invoke(app, ["serve", "--script", str(SCRIPT), "--env", "math"])
    assert isinstance(outcome.exception, UserError) and "add --agent" in str(outcome.exception)
