"""Do trees of rollouts learn more than flat rollouts from the same number of generated tokens?

    python benchmarks/trees.py [--seeds 8] [--first-seed 20] [--steps 24] [--jobs 1] [--folder FOLDER] [--json FILE]
    python benchmarks/trees.py --from FILE.json

Arms, at the quickstart's scale, 16 rollouts a problem of which 8 are kept: `flat`; `leaves` and `siblings`, trees with
8 roots whose other 8 leaves fork after a tool result (`policy = "uniform"`), with the estimator of that name. All arms
of a seed start from the same model, the quickstart's after its warm-up. PLAN says what is tested, fixed before any run.
Each run is `rstar2 train` in a process of its own. The JSON is rewritten after each run, and a run in it is not
made again.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from roc_ablation import RunPool, machine, warm_up_recipe
from roc_figures import holm, paired_difference

from rstar2.config import Recipe, load_recipe
from rstar2.records import RunView
from rstar2.records.atomic import replace_file

PLAN = """\
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
NUM_ROOTS = 8
ARMS: dict[str, dict[str, Any] | None] = {
    "flat": None,
    "leaves": {"num_roots": NUM_ROOTS, "policy": "uniform", "advantage": "leaves"},
    "siblings": {"num_roots": NUM_ROOTS, "policy": "uniform", "advantage": "siblings"},
}
FIRST_SEED = 20
TREE_STEPS = 1.5
LAST_SHARE = 0.25
MEASURES = ("accuracy", "error_share_right", "entropy", "generated_tokens", "calls", "leaves", "step_s")

Steps = dict[str, list[float]]
Found = dict[str, Any]


def arm_recipe(recipe: Recipe, arm: str, seed: int, steps: int, model: Path) -> Recipe:
    tree = recipe.model_dump()
    tree["rollout"]["tree"] = ARMS[arm]
    tree["model"] |= {"name": str(model), "tiny": None}
    num_steps = steps if arm == "flat" else round(TREE_STEPS * steps)
    stage = tree["stages"][0] | {"steps": num_steps, "target_reward": None}
    return Recipe.model_validate({**tree, "seed": seed, "sft": None, "stages": (stage,)})


def measured(folder: Path) -> Steps:
    """Each measure, step by step."""
    run, rows = RunView(folder), dict[str, list[float]]((name, []) for name in MEASURES)
    metrics = {row.step: row.values for row in run.metrics() if "generated_tokens" in row.values}
    for step, values in sorted(metrics.items()):
        of_groups = {trace_id for group in run.groups(step) for trace_id in group.trace_ids}
        traces = [trace for trace in run.traces(step) if trace.id in of_groups]
        first = [trace for trace in traces if trace.sample_index < NUM_ROOTS and trace.reward is not None]
        calls = [trace.own_calls for trace in first if trace.is_right]
        num_calls, num_failed = (sum(pair[place] for pair in calls) for place in (0, 1))
        rows["accuracy"].append(fmean(bool(trace.is_right) for trace in first))
        rows["error_share_right"].append(num_failed / num_calls if num_calls else 0.0)
        rows["entropy"].append(values.get("entropy") or 0.0)
        rows["generated_tokens"].append(values["generated_tokens"] or 0.0)
        rows["calls"].append(sum(len(turn.results) for trace in traces for turn in trace.own_turns))
        rows["leaves"].append(len(traces))
        rows["step_s"].append(values["step_s"] or 0.0)
    return rows


def at_budget(steps: Steps, measure: str, spent: str, budget: float) -> float:
    """The mean of a measure over the steps that end within the last quarter of the budget; the last step before it, if
    there is none."""
    total, ends = 0.0, []
    for cost, value in zip(steps[spent], steps[measure], strict=True):
        total += cost
        ends.append((total, value))
    within = [value for end, value in ends if (1 - LAST_SHARE) * budget < end <= budget]
    return fmean(within) if within else [value for end, value in ends if end <= budget][-1]


def show(found: Found) -> None:
    print(PLAN)
    for spent in ("generated_tokens", "step_s"):
        outcomes: dict[str, dict[str, float]] = {arm: {} for arm in ARMS}
        for seed, runs in found["seeds"].items():
            if not runs:
                continue
            budget = min(sum(steps[spent]) for steps in runs.values())
            for arm, steps in runs.items():
                outcomes[arm][seed] = at_budget(steps, "accuracy", spent, budget)
        print(f"\naccuracy of the first {NUM_ROOTS} rollouts at equal {spent}")
        for arm, by_seed in outcomes.items():
            print(f"  {arm:>9}: " + (f"{fmean(by_seed.values()):.3f} over {len(by_seed)} seeds" if by_seed else "none"))
        contrasts = {
            arm: [value - outcomes["flat"][seed] for seed, value in outcomes[arm].items() if seed in outcomes["flat"]]
            for arm in ("leaves", "siblings")
        }
        tested = {arm: paired_difference(values) for arm, values in contrasts.items() if len(values) > 1}
        adjusted = holm([difference.p for difference in tested.values()])
        for (arm, difference), p in zip(tested.items(), adjusted, strict=True):
            interval = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
            print(f"  {arm} - flat: {interval}, {difference.num_pairs} pairs, p {difference.p:.4f}, Holm {p:.4f}")
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
    recipe = load_recipe(Path("quickstart"))
    pool = RunPool(folder, asyncio.Semaphore(options.jobs), options.deadline_s, 1)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        runs = found["seeds"].setdefault(str(seed), {})
        missing = [arm for arm in ARMS if arm not in runs]
        model = folder / f"warm-up-{seed}" / "final"
        if not missing or (
            not model.is_dir() and not await pool.train(f"warm-up-{seed}", warm_up_recipe(recipe, seed))
        ):
            continue
        recipes = {arm: arm_recipe(recipe, arm, seed, options.steps, model) for arm in missing}
        trained = await asyncio.gather(*(pool.train(f"{arm}-{seed}", each) for arm, each in recipes.items()))
        for arm, run in zip(recipes, trained, strict=True):
            if run is not None:
                runs[arm] = measured(run)
        if options.json is not None:
            replace_file(options.json, (json.dumps(found, indent=1) + "\n").encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, help="other seeds are for trying things out")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=7200.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path)
    options = parser.parse_args()
    if options.source is not None:
        show(json.loads(options.source.read_text(encoding="utf-8")))
        return 0
    found: Found = {"machine": machine(), "steps": options.steps, "seeds": {}}
    if options.json is not None and options.json.exists():
        found = json.loads(options.json.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(compare(options, found, folder))
    show(found)
    return 0 if all(len(runs) == len(ARMS) for runs in found["seeds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
