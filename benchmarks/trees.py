"""Do trees of rollouts learn more than flat rollouts from the same number of generated tokens?

    python benchmarks/trees.py [--scale quickstart|smollm2-1gpu|qwen-coder-1gpu] [--seeds N] [--first-seed N]
        [--steps N] [--jobs 1] [--folder FOLDER] [--json FILE]
    python benchmarks/trees.py --from FILE.json

Arms, with half of a problem's rollouts kept (16 of the quickstart, 32 of the others): `flat`; `leaves` and `siblings`,
trees whose roots are half of their leaves and whose other leaves fork after a tool result (`policy = "uniform"`), with
the estimator of that name. All arms of a seed start from the same model, the recipe's after its warm-up. The plan of a
scale says what is tested, fixed before any of its runs. Each run is `rstar2 train` in a process of its own. The JSON is
rewritten after each run, and a run in it is not made again.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from roc_ablation import RunPool, machine, warm_up_recipe
from roc_figures import holm, paired_difference

from rstar2.config import Recipe, load_recipe
from rstar2.records import RunView
from rstar2.records.atomic import replace_file

QUICKSTART_PLAN = """\
What is tested, fixed before the first run (2026-11-16).

Hypothesis: at equal generated tokens, a policy that learns from trees is more accurate than one that learns from flat
rollouts. It may as well be worse: leaves of one fork are correlated, and fewer of them begin at the prompt.
Seeds: 20 to 27, which no earlier run had. One counts in a contrast if both its runs ended.
Steps: 24 of the quickstart's first stage for flat; half as many again for trees, which generate less in a step.
Budget of a seed: the fewest tokens that one of its arms generated in all its steps.

Primary outcome: accuracy of the first 8 rollouts of each problem, which begin at the prompt in every arm, so that where
trees fork cannot change it; mean over the steps that end within the last quarter of the budget.
  H1: leaves differs from flat. H2: siblings differs from flat.
Test: paired differences by seed; mean with a 95% t-interval; exact two-sided sign-flip p; Holm over H1 and H2; 0.05.
  With 8 seeds the least p of one contrast is 0.0078, after Holm 0.0156.
  Neither below 0.05: not shown here; the interval says how large an effect is ruled out. Below 0: against trees.

Secondary, described and not tested: the same at equal seconds of the steps; share of failing calls in right rollouts
among the first 8; entropy of the trainer's distribution; generated tokens and executed calls a leaf.
"""
SMOLLM2_PLAN = """\
What is tested, fixed before the first run (2026-11-18).

Hypothesis, budget, outcome and test are those of the quickstart's plan, at SmolLM2-135M on one GPU: stage one of its
recipe, 32 problems a step, 32 rollouts each of which 16 are kept, trees with 16 roots; on-policy.
Seeds: 30 to 35, which no earlier run had. Steps: 16 for flat, 24 for trees.
Primary outcome: accuracy of the first 16 rollouts of each problem, mean over the steps that end within the last quarter
of the budget in generated tokens.
  H1, the only test: leaves differs from flat. With 6 seeds the least p is 0.031; with 5, if one is lost, 0.0625: then
  nothing can be shown, and the interval is all that is said.
  siblings against flat is described with its interval, not tested.
Secondary, described and not tested: as in the quickstart's plan. Seconds are those of runs that share the GPU.
"""
QWEN_PLAN = """\
Nothing is tested here: what a leaf costs in generated tokens and executed calls, in stage one of Qwen2.5-Coder-1.5B's
recipe after its warm-up. 32 problems a step, 32 rollouts each, trees with 16 roots; on-policy. Seed 40; 4 steps for
flat, 6 for trees.
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """What one experiment runs, and what was decided before it."""

    plan: str
    first_seed: int
    num_seeds: int
    num_steps: int
    tested: tuple[str, ...]
    """The arms whose difference from `flat` is tested; Holm corrects for their number."""
    overrides: tuple[str, ...] = ()


SCALES = {
    "quickstart": Scale(QUICKSTART_PLAN, 20, 8, 24, ("leaves", "siblings")),
    "smollm2-1gpu": Scale(
        *(SMOLLM2_PLAN, 30, 6, 16, ("leaves",)),
        (
            "train.max_staleness=0",
            "train.prompts_per_step=32",
            "train.micro_batch_tokens=6144",
            "train.checkpoint_every_steps=1000",
            "engine.kv_cache_tokens=200000",
            "engine.max_batch=1024",
            "rollout.num_workers=0",
            "sandbox.num_slots=4",
            "eval.benchmarks=[]",
            "data.stories.num_problems=3000",
        ),
    ),
    "qwen-coder-1gpu": Scale(
        *(QWEN_PLAN, 40, 1, 4, ()),
        (
            "train.max_staleness=0",
            "train.micro_batch_tokens=8192",
            "train.checkpoint_every_steps=1000",
            "engine.kv_cache_tokens=400000",
            "rollout.num_workers=4",
            "eval.benchmarks=[]",
        ),
    ),
}
ARMS = ("flat", "leaves", "siblings")
TREE_STEPS = 1.5
LAST_SHARE = 0.25
MEASURES = ("accuracy", "error_share_right", "entropy", "generated_tokens", "calls", "leaves", "step_s")

Steps = dict[str, list[float]]
Found = dict[str, Any]


def num_roots(recipe: Recipe) -> int:
    return recipe.algo.num_sampled // 2


def arm_recipe(recipe: Recipe, arm: str, seed: int, steps: int, model: Path) -> Recipe:
    tree = recipe.model_dump()
    if arm != "flat":
        tree["rollout"]["tree"] = {"num_roots": num_roots(recipe), "policy": "uniform", "advantage": arm}
    tree["model"] |= {"name": str(model), "tiny": None}
    num_steps = steps if arm == "flat" else round(TREE_STEPS * steps)
    stage = tree["stages"][0] | {"steps": num_steps, "target_reward": None}
    return Recipe.model_validate({**tree, "seed": seed, "sft": None, "stages": (stage,)})


def measured(folder: Path, num_first: int) -> Steps:
    """Each measure, step by step; of accuracy and failing calls, over the first rollouts of each problem."""
    run, rows = RunView(folder), dict[str, list[float]]((name, []) for name in MEASURES)
    metrics = {row.step: row.values for row in run.metrics() if "generated_tokens" in row.values}
    for step, values in sorted(metrics.items()):
        of_groups = {trace_id for group in run.groups(step) for trace_id in group.trace_ids}
        traces = [trace for trace in run.traces(step) if trace.id in of_groups]
        first = [trace for trace in traces if trace.sample_index < num_first and trace.reward is not None]
        calls = [trace.own_calls for trace in first if trace.is_right]
        num_calls, num_failed = (sum(pair[place] for pair in calls) for place in (0, 1))
        rows["accuracy"].append(fmean(bool(trace.is_right) for trace in first))
        rows["error_share_right"].append(num_failed / num_calls if num_calls else 0.0)
        if (entropy := values.get("entropy")) is not None:  # of a step that learnt something
            rows["entropy"].append(entropy)
        rows["generated_tokens"].append(values["generated_tokens"] or 0.0)
        rows["calls"].append(sum(len(turn.results) for trace in traces for turn in trace.own_turns))
        rows["leaves"].append(len(traces))
        rows["step_s"].append(values["step_s"] or 0.0)
    return rows


def at_budget(steps: Steps, measure: str, spent: str, budget: float) -> float:
    """The mean of a measure over the steps that end within the last quarter of the budget; the last step before it, if
    there is none."""
    ends = list(zip(accumulate(steps[spent]), steps[measure], strict=True))
    within = [value for end, value in ends if (1 - LAST_SHARE) * budget < end <= budget]
    return fmean(within) if within else [value for end, value in ends if end <= budget][-1]


def show(found: Found) -> None:
    scale = SCALES[found["scale"]]
    print(scale.plan)
    for spent in ("generated_tokens", "step_s"):
        outcomes: dict[str, dict[str, float]] = {arm: {} for arm in ARMS}
        for seed, runs in found["seeds"].items():
            if not runs:
                continue
            # Added up as in `at_budget`: `sum` may round otherwise, and leave out an arm's last step.
            budget = min([*accumulate(steps[spent])][-1] for steps in runs.values())
            for arm, steps in runs.items():
                outcomes[arm][seed] = at_budget(steps, "accuracy", spent, budget)
        print(f"\naccuracy of the first half of the rollouts at equal {spent}")
        for arm, by_seed in outcomes.items():
            print(f"  {arm:>9}: " + (f"{fmean(by_seed.values()):.3f} over {len(by_seed)} seeds" if by_seed else "none"))
        contrasts = {
            arm: [value - outcomes["flat"][seed] for seed, value in outcomes[arm].items() if seed in outcomes["flat"]]
            for arm in ARMS[1:]
        }
        differences = {arm: paired_difference(values) for arm, values in contrasts.items() if len(values) > 1}
        tested = [arm for arm in scale.tested if arm in differences and spent == "generated_tokens"]
        adjusted = dict(zip(tested, holm([differences[arm].p for arm in tested]), strict=True))
        for arm, difference in differences.items():
            interval = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
            test = f"p {difference.p:.4f}, Holm {adjusted[arm]:.4f}" if arm in adjusted else "not tested"
            print(f"  {arm} - flat: {interval}, {difference.num_pairs} pairs, {test}")
    print("\nmeans over all steps")
    for arm in ARMS:
        runs = [runs[arm] for runs in found["seeds"].values() if arm in runs]
        if runs:
            total = {name: sum(sum(steps[name]) for steps in runs) for name in ("generated_tokens", "calls", "leaves")}
            means = {name: fmean(fmean(steps[name]) for steps in runs) for name in ("error_share_right", "entropy")}
            print(
                f"  {arm:>9}: {total['generated_tokens'] / total['leaves']:.1f} tokens and "
                f"{total['calls'] / total['leaves']:.2f} calls a leaf, failing calls in right rollouts "
                f"{means['error_share_right']:.1%}, entropy {means['entropy']:.3f}"
            )


async def compare(options: argparse.Namespace, found: Found, folder: Path) -> None:
    recipe = load_recipe(options.scale, SCALES[options.scale].overrides)
    pool = RunPool(folder, asyncio.Semaphore(options.jobs), options.deadline_s, 1)
    seeds_at_a_time = asyncio.Semaphore(max(1, options.jobs // 2))  # an early end leaves complete seeds

    async def learn(arm: str, seed: int, model: Path, runs: dict[str, Steps]) -> None:
        run = await pool.train(f"{arm}-{seed}", arm_recipe(recipe, arm, seed, options.steps, model))
        if run is not None:
            runs[arm] = await asyncio.to_thread(measured, run, num_roots(recipe))
            if options.json is not None:
                replace_file(options.json, (json.dumps(found, indent=1) + "\n").encode())

    async def learn_all(seed: int) -> None:
        async with seeds_at_a_time:
            await learn_missing(seed)

    async def learn_missing(seed: int) -> None:
        runs = found["seeds"].setdefault(str(seed), {})
        missing = [arm for arm in ARMS if arm not in runs]
        model = folder / f"warm-up-{seed}" / "final"
        if missing and (model.is_dir() or await pool.train(f"warm-up-{seed}", warm_up_recipe(recipe, seed))):
            await asyncio.gather(*(learn(arm, seed, model, runs) for arm in missing))

    await asyncio.gather(*map(learn_all, range(options.first_seed, options.first_seed + options.seeds)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="quickstart")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, help="other seeds than the plan's are for trying things out")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=7200.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path)
    options = parser.parse_args()
    if options.source is not None:
        show(json.loads(options.source.read_text(encoding="utf-8")))
        return 0
    scale = SCALES[options.scale]
    options.seeds = options.seeds or scale.num_seeds
    options.first_seed = scale.first_seed if options.first_seed is None else options.first_seed
    options.steps = options.steps or scale.num_steps
    found: Found = {"scale": options.scale, "machine": machine(), "steps": options.steps, "seeds": {}}
    if options.json is not None and options.json.exists():
        earlier: Found = json.loads(options.json.read_text(encoding="utf-8"))
        for name in ("scale", "steps"):
            if earlier[name] != found[name]:
                parser.error(f"{options.json} has runs of {name} {earlier[name]}, not {found[name]}; use another file")
        found = earlier
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(compare(options, found, folder))
    show(found)
    return 0 if all(len(runs) == len(ARMS) for runs in found["seeds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
