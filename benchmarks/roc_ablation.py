"""Does resampling on correct help? `paper` against its compute-matched control `random` and plain GRPO (`off`).

All three sample the same number of rollouts from the same warmed-up model: `paper` and `random` keep half of them,
`off` trains on all. Printed for each, with mean and spread over seeds: held-out accuracy at the end, the share of tool
calls that fail inside right rollouts, and the length of responses, over the last steps. Whatever comes out is printed.

    python benchmarks/roc_ablation.py [--seeds 3] [--first-seed 0] [--steps 40] [--threads N] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev

import torch

from rstar2.config import Recipe, load_recipe
from rstar2.records import RunView
from rstar2.train import prepare_new, train

RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.toml"
MODES = ("paper", "random", "off")
MEASURES = {
    "accuracy": "held-out accuracy",
    "tool_error_share_right": "tool errors in right rollouts",
    "response_tokens_mean": "response tokens",
    "train_s": "training seconds a step",
}
NUM_LAST_STEPS = 5


class Dots:
    """Satisfies `Observer`: one dot a step, so that somebody who waits sees that it goes on."""

    def phase(self, name: str, num_steps: int, num_done: int) -> None:
        pass

    def metrics(self, step: int, stage: str, _values: Mapping[str, float]) -> None:
        if stage != "sft" or step % 100 == 0:
            print(".", end="", file=sys.stderr, flush=True)

    def rollouts(self, num_ended: int) -> None:
        pass

    def say(self, message: str) -> None:
        pass


def warm_up(seed: int, folder: Path) -> Path:
    """The quickstart's model after its warm-up: where all modes start from."""
    recipe = load_recipe(RECIPE, [f"seed={seed}", "eval.benchmarks=[]"])
    recipe = Recipe.model_validate({**recipe.model_dump(), "stages": ()})
    asyncio.run(train(prepare_new(recipe, folder), Dots()))
    return folder / "final"


def learn(mode: str, seed: int, model: Path, steps: int, folder: Path) -> dict[str, float]:
    overrides = [f"seed={seed}", f"stages.concise.steps={steps}", f"algo.selection={mode}"]
    if mode == "off":
        whole = load_recipe(RECIPE).algo.num_sampled
        overrides += [f"algo.group_size={whole}", "algo.oversample_factor=1"]
    # The recipe's model is built from nothing; here it is a folder, and the warm-up is done.
    tree = load_recipe(RECIPE, overrides).model_dump()
    tree["model"] |= {"name": str(model), "tiny": None}
    tree |= {"sft": None, "stages": tree["stages"][:1]}
    asyncio.run(train(prepare_new(Recipe.model_validate(tree), folder), Dots()))
    rows = list(RunView(folder).metrics())
    trained = [row.values for row in rows if not row.stage.startswith("eval:")][-NUM_LAST_STEPS:]
    measured = {name: fmean([values[name] or 0.0 for values in trained]) for name in MEASURES if name != "accuracy"}
    measured["accuracy"] = [row.values["accuracy"] or 0.0 for row in rows if row.stage.startswith("eval:")][-1]
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    started_s = time.monotonic()
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            model = warm_up(seed, Path(scratch) / f"warm-up-{seed}")
            for mode in MODES:
                folder = Path(scratch) / f"{mode}-{seed}"
                found[mode].append(learn(mode, seed, model, options.steps, folder))
                shown = ", ".join(f"{words} {found[mode][-1][name]:.3f}" for name, words in MEASURES.items())
                print(f"\nseed {seed}, {mode}: {shown}", file=sys.stderr, flush=True)
                shutil.rmtree(folder)
    print(file=sys.stderr)
    num_sampled = load_recipe(RECIPE).algo.num_sampled
    machine = platform.processor() or platform.machine()
    print(f"{options.seeds} seeds, {options.steps} steps, {num_sampled} rollouts a problem, {machine}")
    print(f"{time.monotonic() - started_s:.0f} s in all")
    print(f"{'':32}" + "".join(f"{mode:>20}" for mode in MODES))
    for name, words in MEASURES.items():
        cells = []
        for mode in MODES:
            values = [measured[name] for measured in found[mode]]
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{fmean(values):.3f} ± {spread:.3f}")
        print(f"{words:32}" + "".join(f"{cell:>20}" for cell in cells))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
