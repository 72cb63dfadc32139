"""`rstar2 simulate` as its users see it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rstar2.cli.simulate import simulate_command
from rstar2.errors import UserError
from rstar2.extensions import POLICIES

pytestmark = pytest.mark.unit

app = typer.Typer()
app.command()(simulate_command)
SMALL = ["--engines", "2", "--problems", "4", "--samples", "4", "--processes", "1"]


def test_json_has_every_workload_and_policy_and_nothing_else() -> None:
    result = CliRunner().invoke(app, ["--json", *SMALL])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert f"simulating: 0 of {4 * len(POLICIES)} done" in result.stderr
    assert list(document) == ["workloads"]
    assert list(document["workloads"]) == ["default", "short-tail", "heavy-tail", "slow-tools"]
    for workload in document["workloads"].values():
        assert list(workload) == ["lower_bound_s", "policies"]
        assert list(workload["policies"]) == list(POLICIES)
        for policy in workload["policies"].values():
            assert list(policy) == ["makespan_s", "recomputed_tokens", "generated_tokens", "idle_share", "preemptions"]
            assert policy["makespan_s"] >= workload["lower_bound_s"]
        assert len({policy["generated_tokens"] for policy in workload["policies"].values()}) == 1


def test_informed_bounds_are_added_when_asked_for() -> None:
    arguments = ["--informed", "--workload", "default", "--policy", "kv-aware", *SMALL]
    assert "without foresight, problems known: " in CliRunner().invoke(app, arguments).stdout
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["workloads"]["default"]
    assert document["informed_bound_problems_known_s"] > 0
    assert list(document)[:2] == ["lower_bound_s", "policies"]


def test_the_table_names_the_bound_and_the_chart_is_written(tmp_path: Path) -> None:
    arguments = ["--workload", "default", "--policy", "kv-aware", "--chart", str(tmp_path / "picture.svg"), *SMALL]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "default: 16 rollouts on 2 engines, lower bound" in result.stdout
    assert "kv-aware" in result.stdout
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")


def test_trees_generate_fewer_tokens_under_every_policy() -> None:
    def generated(*more: str) -> dict[str, int]:
        result = CliRunner().invoke(app, ["--json", "--workload", "default", *SMALL, *more])
        assert result.exit_code == 0, result.output
        workload = json.loads(result.stdout)["workloads"]["default"]
        assert all(policy["makespan_s"] >= workload["lower_bound_s"] for policy in workload["policies"].values())
        return {name: policy["generated_tokens"] for name, policy in workload["policies"].items()}

    flat, trees = generated(), generated("--roots", "2")
    assert len(set(trees.values())) == 1
    assert all(trees[policy] < flat[policy] for policy in POLICIES)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--roots", "2", "--informed"], "--roots and --informed exclude each other"),
        (["--workload", "tall"], "there is no workload 'tall'"),
        (["--policy", "fair"], "--policy fair: must be the name of a scheduling policy"),
        (["--hardware", "abacus"], "--hardware abacus: known are mi300x, h100, h200"),
        (["--hardware", "h100", "--memory-fraction", "0.3"], "leaves no cache"),
        (["--replay", "nowhere", "--workload", "default"], "exclude each other"),
        (["--step", "3"], "--step needs --replay"),
        (["--replay", "nowhere"], "nowhere is not a run directory"),
        (["--measured", "nowhere.json"], "nowhere.json is not a measured engine"),
        (["--measure", "model"], "--measure needs --measured FILE"),
        (["--measure", "nowhere", "--measured", "engine.json"], "'nowhere' is neither a model folder nor a name"),
        (["--informed", "--replay", "nowhere"], "--informed needs workloads"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, [*arguments, *SMALL])
    assert isinstance(result.exception, UserError)
    assert sentence in str(result.exception)
