"""Training behind a foreign program: in one process, with segments that reach the learner."""

from pathlib import Path

import pytest
from train_recipes import write_recipe

from rstar2.config import parse_recipe
from rstar2.records import RunStatus, RunView
from rstar2.train import Observers, prepare_new, train

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

PROGRAM = '''
import functools

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

connections = functools.cache(DefaultAsyncHttpxClient)


async def agent(row, base_url, api_key, model):
    """Asks once, and once more in another conversation."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=connections())
    for asked in (f"Say {row['number']}.", f"Say it in other words: {row['number']}."):
        messages = [{"role": "user", "content": asked}]
        await client.chat.completions.create(model=model, messages=messages, max_completion_tokens=24)
    return str(row["number"])


def reward(row, trace):
    return min(1.0, trace.num_sampled_tokens / 40) + 0.01 * sum(trace.turns[0].token_ids[:1])


def rows():
    for number in range(40):
        yield {"number": number, "prompt": f"Say {number}."}
'''
SECTION = """
[environments.own]
source = "harness"
reward = "file:{file}:reward"
settings = {{ agent = "file:{file}:agent", rows = "file:{file}:rows" }}

[data.own]
source = "environment"
environment = "own"
share = 1.0
"""


async def test_a_run_trains_behind_a_program(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    change = ("[rollout]\n", "[rollout]\nnum_workers = 0\n")
    text = write_recipe(tmp_path, change).read_text().replace('data = ["guesses"]', 'data = ["own"]')
    recipe = parse_recipe(text + SECTION.format(file=file))
    await train(prepare_new(recipe, tmp_path / "run"), Observers())
    run = RunView(tmp_path / "run")
    assert run.status is RunStatus.FINISHED
    traces = [trace for step in run.trace_steps() for trace in run.traces(step) if trace.environment == "own"]
    assert traces and all(trace.reward is not None for trace in traces), {trace.note for trace in traces}
    assert {len(trace.segments) for trace in traces} == {2}
    mismatches = [row.values["mismatch_max"] for row in run.metrics() if "mismatch_max" in row.values]
    assert mismatches and max(value or 0.0 for value in mismatches) < 1e-3, "the learner reads what the engine sampled"
