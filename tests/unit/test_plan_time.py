"""Lengths, simulated generation, updates by roofline: how the parts of a plan's time hang together."""

from dataclasses import replace

import pytest
from plan_recipes import make_layout, make_model, make_recipe

from rstar2.errors import UserError
from rstar2.plan.assumptions import Assumptions, MeanLength
from rstar2.plan.devices import find_device
from rstar2.plan.generation import RolloutBatch, engine_model, estimate
from rstar2.plan.plan import make_plan
from rstar2.plan.rollout_lengths import cut_mean, draw, mean_length, median_of_mean, workload_shape
from rstar2.plan.timing import total_size
from rstar2.plan.training_time import Passes, sync_time, update_time

pytestmark = pytest.mark.unit

ASSUMED = Assumptions(max_simulated_rollouts=64)


@pytest.mark.parametrize("mean", [1024.0, 4096.0, 8192.0, 12_000.0])
def test_the_median_is_found_for_any_mean_below_the_limit(mean: float) -> None:
    assert cut_mean(median_of_mean(mean, 12_288, 0.7), 12_288, 0.7) == pytest.approx(mean, rel=1e-6)


def test_drawn_rollouts_have_the_mean_that_was_asked_for_and_keep_to_the_limits() -> None:
    shape = workload_shape(make_recipe(), Assumptions(), 3000, 8192, 10)
    rollouts = draw(shape, 64, 16, seed=1).rollouts
    lengths = [sum(turn.num_sampled_tokens + turn.num_appended_tokens for turn in each.turns) for each in rollouts]
    assert sum(lengths) / len(lengths) == pytest.approx(3000, rel=0.04)
    assert max(lengths) <= 8192
    assert max(len(each.turns) for each in rollouts) <= 10


def test_stages_of_other_recipes_use_the_reports_share_of_their_limit() -> None:
    stages = make_recipe().stages
    assert mean_length(stages[0], 0, {}) == MeanLength(24, 96)
    assert mean_length(stages[0], 7, {}) == MeanLength(96, 128)
    assert mean_length(stages[0], 0, {"": MeanLength(5, 6), "only": MeanLength(7, 8)}) == MeanLength(7, 8)
    with pytest.raises(UserError, match="stage only, which is 192"):
        mean_length(stages[0], 0, {"": MeanLength(10, 192)})


def test_a_slice_takes_about_as_long_as_the_whole() -> None:
    recipe = make_recipe(engine={"kv_cache_tokens": 4096})
    shape = workload_shape(recipe, Assumptions(tool_s=0), 90, 192, 10)
    engine = replace(
        engine_model(recipe, find_device("cpu"), make_model(recipe).shape()), num_cache_tokens=4096, weights_s=0.01
    )
    batch = RolloutBatch(shape, num_problems=64, num_samples=8)
    whole = estimate(batch, "kv-aware", engine, 8, 10_000, seed=0)
    part = estimate(batch, "kv-aware", engine, 8, 128, seed=0)
    assert (whole.num_simulated, part.num_simulated) == (512, 128)
    assert whole.num_rollouts == part.num_rollouts == 512
    assert part.makespan_s == pytest.approx(whole.makespan_s, rel=0.25)
    extrapolated = estimate(replace(batch, num_problems=16), "kv-aware", engine, 1, 96, seed=0)
    simulated = estimate(replace(batch, num_problems=16), "kv-aware", engine, 1, 10_000, seed=0)
    assert extrapolated.makespan_s == pytest.approx(simulated.makespan_s, rel=0.3)


def test_an_update_costs_its_passes() -> None:
    recipe = make_recipe(cluster={"num_nodes": 2, "gpus_per_node": 4})
    layout, device, shape = make_layout(recipe), find_device("h100"), make_model(recipe, is_on_gpu=True).shape()
    arguments = {"layout": layout, "device": device, "shape": shape, "assumptions": ASSUMED}
    plain = make_recipe(train={"gradient_checkpointing": False})
    update = update_time(1e6, 0, recipe=plain, **arguments)
    assert update.compute_s == pytest.approx(6 * shape.num_active_params * 1e6 / (8 * 989e12 * 0.35))
    assert update.train_s == max(update.compute_s, update.communicate_s)
    assert update.communicate_s > 0
    assert Passes.of(recipe).total == 4
    assert Passes.of(make_recipe(algo={"kl_coef": 0.1}, train={"optimizer_steps_per_batch": 2})).total == 5.5
    assert sync_time(layout, device, shape, ASSUMED) == pytest.approx(shape.weight_bytes / (200e9 * 0.7))
    assert sync_time(make_layout(make_recipe()), device, shape, ASSUMED) == 0


def test_the_parts_of_a_step_and_of_a_run_add_up() -> None:
    recipe = make_recipe(
        sft={"data": ["talk"], "max_tokens": 200},
        data={"talk": {"source": "procedural:tool_format", "num_problems": 30}},
        eval={"benchmarks": ["train"], "num_samples": 2, "max_response_tokens": 200, "every_steps": 2},
        stages=[
            {
                "name": "only",
                "data": ["train"],
                "max_response_tokens": 192,
                "steps": 5,
                "difficulty_filter": {"num_samples": 2, "drop_solved": 2},
            }
        ],
    )
    said: list[str] = []
    plan = make_plan(recipe, find_device("cpu"), ASSUMED, on_step=said.append)
    assert plan.run_time is not None
    (stage,) = plan.run_time.stages
    for step in (stage.first, stage.last, stage.mean):
        assert step.total_s == pytest.approx(step.generate_s + step.tools_s + step.train_s + step.sync_s)
    assert stage.first.total_s < stage.mean.total_s < stage.last.total_s
    assert stage.filter_s > 0
    assert stage.total_s == pytest.approx(5 * stage.mean.total_s + stage.filter_s + stage.evaluation_s)
    assert plan.run_time.total_s == pytest.approx(plan.run_time.warm_up_s + stage.total_s)
    assert plan.device_hours == pytest.approx(plan.run_time.total_s / 3600)
    assert said.count("simulating an evaluation") == 1, "each distinct batch is simulated once"


def test_generation_that_runs_ahead_takes_the_longer_of_both() -> None:
    cluster = {
        "num_nodes": 1,
        "gpus_per_node": 4,
        "layout": "separated",
        "num_trainer_ranks": 2,
        "num_engines": 2,
    }
    plan = make_plan(
        make_recipe(cluster=cluster, train={"max_staleness": 1}, algo={"tis_cap": 2.0}), find_device("h100"), ASSUMED
    )
    assert plan.run_time is not None
    step = plan.run_time.stages[0].mean
    assert step.total_s == pytest.approx(max(step.generate_s + step.tools_s, step.train_s) + step.sync_s)
    assert [rank.name for rank in plan.ranks] == ["rank 0", "rank 1", "engine"]
    assert [[phase.name for phase in rank.phases] for rank in plan.ranks] == [["train"], ["train"], ["generate"]]


def test_sets_of_unknown_size_are_named_and_can_be_given() -> None:
    recipe = make_recipe(data={"far": {"source": "hub:somebody/something"}})
    assert total_size(recipe, ("train", "far", "math500"), {}) == (550, ("far",))
    assert total_size(recipe, ("train", "far"), {"far": 7}) == (57, ())


def test_a_micro_batch_that_does_not_fit_comes_with_one_that_does() -> None:
    big = {"hidden_size": 4096, "num_layers": 16, "num_heads": 32, "num_kv_heads": 8, "vocab_size": 32_000}
    recipe = make_recipe(
        model={"tiny": big, "context_tokens": 8192},
        train={"micro_batch_tokens": 60_000, "gradient_checkpointing": False},
        cluster={"num_nodes": 1, "gpus_per_node": 8},
        engine={"kv_cache_tokens": 16_384},
    )
    plan = make_plan(recipe, find_device("h100"), ASSUMED)
    largest = plan.micro_batch.num_largest_tokens
    assert not plan.fits
    assert largest is not None
    assert 256 < largest < 60_000
    (sentence,) = plan.problems
    assert sentence.startswith("train.micro_batch_tokens: 60000 needs ")
    assert f"{largest} fits" in sentence
    assert "train.gradient_checkpointing = true" in sentence
    fitting = recipe.model_copy(update={"train": recipe.train.model_copy(update={"micro_batch_tokens": largest})})
    assert make_plan(fitting, find_device("h100"), ASSUMED).fits


def test_a_recipe_that_trains_nothing_has_no_plan() -> None:
    with pytest.raises(UserError, match="nothing to plan"):
        make_plan(make_recipe(stages=[]), find_device("cpu"), ASSUMED)
