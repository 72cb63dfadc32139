"""`rstar2 plan` as its users see it: the shipped recipes, the document, the exit codes."""

import json
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from rstar2.cli.plan import plan_command
from rstar2.errors import UserError

pytestmark = pytest.mark.integration

QUICK = ["--simulated-rollouts", "64"]
KEYS = [
    *("recipe", "model", "device", "layout", "memory", "micro_batch_tokens", "kv_cache", "warm_up_s", "stages"),
    *("total", "report", "fits", "problems", "notes"),
]

app = typer.Typer()
app.command()(plan_command)


def plan(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*arguments, *QUICK, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_the_reports_run_is_planned_on_64_ranks_and_held_against_its_week() -> None:
    document = plan("qwen3-14b-64gpu")
    assert list(document) == KEYS
    assert document["model"]["num_params"] == 14_768_307_200
    assert document["layout"]["num_trainer_ranks"] == document["layout"]["num_engines"] == 64
    assert [rank["name"] for rank in document["memory"]] == ["rank 0", "rank 63"]
    train = document["memory"][0]["phases"]["train"]
    assert list(train["parts_gib"]) == [
        *("parameters", "gathered parameters", "gradients", "optimizer", "activations", "engine workspace")
    ]
    assert train["parts_gib"]["parameters"] == pytest.approx(14_768_307_200 * 4 / 64 / 2**30, abs=1e-3)
    assert train["total_gib"] == pytest.approx(sum(train["parts_gib"].values()), abs=1e-3)
    generate = document["memory"][0]["phases"]["generate"]
    assert list(generate["parts_gib"]) == [
        *("parameters", "optimizer", "engine weights", "engine workspace", "KV cache")
    ]
    assert document["fits"]
    assert document["micro_batch_tokens"]["largest_that_fits"] > document["micro_batch_tokens"]["recipe"]
    assert [stage["steps"] for stage in document["stages"]] == [300, 85, 125]
    for stage in document["stages"]:
        step = stage["step"]["mean"]
        parts = step["generate_s"] + step["tools_s"] + step["train_s"] + step["sync_s"]
        assert step["total_s"] == pytest.approx(parts, abs=0.01)
        assert stage["evaluation_s"] > 0
    assert document["stages"][2]["filter_s"] > 0
    assert document["report"]["ratio"] == pytest.approx(document["report"]["planned_days"] / 7, abs=0.01)
    assert any("--mfu" in note for note in document["notes"])


@pytest.mark.parametrize(("recipe", "device"), [("smollm2-1gpu", "mi300x"), ("quickstart", "cpu")])
def test_recipes_of_one_process_have_a_plan_too(recipe: str, device: str) -> None:
    document = plan(recipe)
    assert list(document) == KEYS
    assert document["device"]["name"] == device
    assert document["layout"]["sharing"] == "one model"
    assert document["report"] is None
    assert len(document["stages"]) == 3
    (rank,) = document["memory"]
    assert "KV cache" in rank["phases"]["train"]["parts_gib"]


def test_the_tables_show_every_part_and_check_says_no() -> None:
    small = ["--hardware", "l40s", "--set", "cluster.num_nodes=1", "--set", "cluster.gpus_per_node=1"]
    arguments = ["qwen3-14b-64gpu", *small, *QUICK]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    for word in ("parameters", "gradients", "optimizer", "activations", "may be used", "does not fit"):
        assert word in shown.stdout
    assert CliRunner().invoke(app, [*arguments, "--check"], catch_exceptions=False).exit_code == 1


def test_times_are_shown_by_stage() -> None:
    arguments = ["quickstart", *QUICK, "--mean-response-tokens", "concise=40:80"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    for word in ("generate", "tools", "train", "sync", "filter", "evaluation", "device-hours", "40-80", "[model.tiny]"):
        assert word in shown.stdout


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--mean-response-tokens", "nowhere=5", "there is no stage 'nowhere'; there are concise"),
        ("--mean-response-tokens", "many", "must be N, N:M, STAGE=N or STAGE=N:M"),
        ("--problems", "rl", "must be SET=N"),
        ("--hardware", "abacus", "known are mi300x"),
    ],
)
def test_mistakes_are_sentences(option: str, value: str, sentence: str) -> None:
    arguments = ["quickstart", option, value]
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"needs torch: run `pip install 'rstar2\[train\]'`"):
        CliRunner().invoke(app, ["quickstart"], catch_exceptions=False)
