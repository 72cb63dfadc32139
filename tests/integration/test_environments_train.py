"""Training in environments: a class of the user's, several at a time, in one process and in a farm, and with faults."""

from pathlib import Path

import pytest
from train_recipes import write_recipe

from rstar2.config import Recipe, parse_recipe
from rstar2.data.curriculum import mixed as mixed_sets
from rstar2.errors import UserError
from rstar2.records import Problem, RunView, Trace, Verdict
from rstar2.train import Observers, prepare_new, train

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread", "cold_sandboxes")]

OWN = """
from rstar2.environments import Task


class Long(Task):
    '''The longer the answer, the better; the world asks a second time.'''

    def reset(self, number):
        self.turns = 0

    def prompt(self, row):
        return f"Say {row['number']}."

    def reply(self, said):
        self.turns += 1
        return "Again." if self.turns == 1 else None

    def get_reward(self, trace):
        length = min(1.0, trace.num_sampled_tokens / 200)
        return {"length": length / 2, "turns": len(trace.turns) / 8}

    @staticmethod
    def rows():
        for number in range(40):
            yield {"number": number}


class Broken(Long):
    def get_reward(self, trace):
        return {}["nothing"]
"""
OWN_ENVIRONMENT = '[environments.own]\nsource = "file:{file}:{name}"\non_error = "{on_error}"\n'
OWN_DATA = '\n[data.own]\nsource = "environment"\nenvironment = "own"\nshare = 1.0\n'


def write_own(folder: Path, name: str, *changes: tuple[str, str], on_error: str = "skip") -> Recipe:
    """The small recipe with the user's task beside mathematics in its first stage, and alone in its second."""
    file = folder / "own.py"
    file.write_text(OWN)
    text = write_recipe(folder, *changes).read_text()
    first, second, rest = text.partition('name = "second"')
    text = first.replace('data = ["guesses"]', 'data = ["guesses", "own"]')
    text += second + rest.replace('data = ["guesses"]', 'data = ["own"]', 1).partition("[stages.difficulty_filter]")[0]
    text += "[eval]" + rest.partition("[eval]")[2].replace('["held_out"]', '["held_out", "own_test"]')
    text += '\n[data.own_test]\nsource = "environment"\nenvironment = "own"\nnum_problems = 2\n'
    text = text.replace("[data.guesses]\n", "[data.guesses]\nshare = 1.0\n")
    text += OWN_DATA + OWN_ENVIRONMENT.format(file=file, name=name, on_error=on_error)
    return parse_recipe(text)


def traces_of(run: Path) -> list[Trace]:
    view = RunView(run)
    return [trace for step in view.trace_steps() for trace in view.traces(step)]


@pytest.mark.parametrize("num_workers", [0, 2])
async def test_a_run_mixes_mathematics_and_a_task_of_the_users_own(tmp_path: Path, num_workers: int) -> None:
    recipe = write_own(tmp_path, "Long", ("[rollout]\n", f"[rollout]\nnum_workers = {num_workers}\n"))
    run = tmp_path / "run"
    await train(prepare_new(recipe, run), Observers())
    own, answers = [], []
    for trace in traces_of(run):
        (own if trace.environment == "own" else answers).append(trace)
    assert own and answers
    silent = [turn for trace in own for turn in trace.turns[:1] if turn.appended_text and not turn.calls]
    assert silent and all("Again." in turn.appended_text for turn in silent), "the world spoke"
    assert all(trace.verdict is None and 0 < (trace.reward or 0) <= 1 for trace in own if trace.reward is not None)
    assert {trace.metadata.keys() >= {"score/length", "score/turns"} for trace in own} == {True}
    assert all(trace.format_penalty == 0 for trace in own), "it has no answer blocks"
    assert all("score/length" not in trace.metadata for trace in answers)
    rows = [row for row in RunView(run).metrics() if row.stage in ("first", "second")]
    mixed = [row.values for row in rows if "own/reward_mean" in row.values]
    assert mixed and all(values["reward/length"] is not None for values in mixed)
    assert any(row.stage.endswith("/own_test") for row in RunView(run).metrics()), "evaluated in its environment"
    assert max(row.values["groups_kept"] or 0 for row in rows if row.stage == "second") > 0, "it was learnt from"


async def test_a_reward_that_raises_is_counted_and_named_and_never_a_zero(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipe = write_own(tmp_path, "Broken", ("max_refills = 2", "max_refills = 0"))
    await train(prepare_new(recipe, run), Observers())
    broken = [trace for trace in traces_of(run) if trace.environment == "own"]
    assert broken
    for trace in broken:
        assert (trace.reward, trace.verdict) == (None, Verdict.UNDECIDED)
        assert f"{tmp_path / 'own.py'}, line 30: KeyError: 'nothing'" in trace.note


async def test_a_recipe_may_stop_at_the_first_fault_of_an_environment(tmp_path: Path) -> None:
    recipe = write_own(tmp_path, "Broken", on_error="stop")
    with pytest.raises(UserError, match=r"own\.py, line 30: KeyError: 'nothing'"):
        await train(prepare_new(recipe, tmp_path / "run"), Observers())


def test_a_problem_of_a_small_set_comes_as_often_as_its_share_says() -> None:
    small = [Problem(f"s{index}", "", "") for index in range(2)]
    large = [Problem(f"l{index}", "", "") for index in range(10)]
    problems = mixed_sets([small, large], [1.0, 2.0])
    assert len(problems) == 12
    assert sum(problem.id.startswith("s") for problem in problems) == 4
    assert mixed_sets([small, large], [None, None]) == (*small, *large)
