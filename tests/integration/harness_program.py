"""A program that asks the model, its reward and its rows: what the training tests of the harness share."""

from pathlib import Path

from rstar2.records import RunStatus, RunView

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


def with_program(recipe: str, folder: Path) -> str:
    """The recipe, trained behind the program."""
    file = folder / "program.py"
    file.write_text(PROGRAM)
    return recipe.replace('data = ["guesses"]', 'data = ["own"]') + SECTION.format(file=file)


def assert_trained(folder: Path) -> None:
    """Every episode of the finished run has its two segments and a reward, and the learner reads what the engine
    sampled."""
    run = RunView(folder)
    assert run.status is RunStatus.FINISHED
    traces = [trace for step in run.trace_steps() for trace in run.traces(step) if trace.environment == "own"]
    assert traces and all(trace.reward is not None for trace in traces), {trace.note for trace in traces}
    assert {len(trace.segments) for trace in traces} == {2}
    mismatches = [row.values["mismatch_max"] for row in run.metrics() if "mismatch_max" in row.values]
    assert mismatches and max(value or 0.0 for value in mismatches) < 1e-3
