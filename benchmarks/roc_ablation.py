"""Does resampling on correct help, and which of its penalties does? Arms that differ in nothing else, side by side.

    python benchmarks/roc_ablation.py [--recipe FILE] [--set KEY=VALUE …] [--arms paper random off …] [--seeds 3]
        [--steps 40] [--jobs N] [--json FILE] [--figure FILE.svg]
    python benchmarks/roc_ablation.py --from FILE.json … [--json FILE] [--figure FILE.svg]

`paper` is GRPO-RoC; `random` its control, which samples and keeps as many; `off` plain GRPO, which samples as many and
trains on all of them; `release` the released code's choice; `errors` and `format` are `paper` with one of its two
penalties. All arms of a seed start from the same model: the recipe's after its warm-up. They train for `--steps` steps
of its first stage. Whatever comes out is printed, with mean and spread over seeds.

Each run is `rstar2 train` in a process of its own with a deadline. One that fails is told with the last lines that it
printed, and leaves the others alone; the exit code is then 1. The JSON is written anew whenever a run ends. `--from`
shows such files again without a run, several of the same settings as one.
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from roc_figures import HELD_OUT, LABELS, NUM_LAST_STEPS, Found, Learnt, draw_figure, draw_table

from rstar2.config import Recipe, load_recipe
from rstar2.config.emit import to_toml
from rstar2.errors import UserError
from rstar2.records import RunView
from rstar2.records.atomic import replace_file

QUICKSTART = Path("quickstart")
ARMS = {
    "paper": {"selection": "paper"},
    "random": {"selection": "random"},
    "off": {"selection": "off"},
    "release": {"selection": "release"},
    "errors": {"selection": "paper", "penalty": "errors"},
    "format": {"selection": "paper", "penalty": "format"},
}
"""Name: what it sets in [algo]."""
EVALUATION = "eval:"
NUM_TAIL_LINES = 15


# The recipes.


def warm_up_recipe(recipe: Recipe, seed: int) -> Recipe:
    tree = recipe.model_dump()
    return Recipe.model_validate({**tree, "seed": seed, "stages": (), "eval": tree["eval"] | {"benchmarks": ()}})


def arm_recipe(recipe: Recipe, arm: str, seed: int, steps: int, model: Path | None) -> Recipe:
    """`model`: the folder that the warm-up left; None where the recipe has no warm-up."""
    tree = recipe.model_dump()
    tree["algo"] |= ARMS[arm]
    if arm == "off":
        tree["algo"] |= {"group_size": recipe.algo.num_sampled, "oversample_factor": 1}
    if model is not None:
        tree["model"] |= {"name": str(model), "tiny": None}
    # As many steps in every arm, however fast it learns.
    stage = tree["stages"][0] | {"steps": steps, "target_reward": None}
    return Recipe.model_validate({**tree, "seed": seed, "sft": None, "stages": (stage,)})


# The runs.


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where runs are made: so many at a time, each to its end or to its deadline."""

    folder: Path
    places: asyncio.Semaphore
    deadline_s: float
    num_threads: int

    async def train(self, name: str, recipe: Recipe) -> Path | None:
        """The run's folder; None if it did not end well, which is then said."""
        run, recipe_file, log_file = (self.folder / f"{name}{suffix}" for suffix in ("", ".toml", ".log"))
        recipe_file.write_text(to_toml(recipe), encoding="utf-8")
        arguments = ["train", str(recipe_file), "--run", str(run), "--threads", str(self.num_threads)]
        async with self.places:
            say(f"{name} begins")
            trouble = await self._trouble(["-m", "rstar2.cli.main", *arguments], log_file)
        if trouble is None:
            return run
        tail = log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_TAIL_LINES:]
        say("\n    ".join([f"{name} failed: {trouble}", *tail]))
        return None

    async def _trouble(self, arguments: Sequence[str], log_file: Path) -> str | None:
        with log_file.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *arguments, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            async with asyncio.timeout(self.deadline_s):
                code = await process.wait()
        except TimeoutError:
            return f"not done in {self.deadline_s:g} s"
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return f"it ended with {code}" if code else None


def measured(folder: Path) -> Learnt:
    rows = list(RunView(folder).metrics())
    steps = [row.values for row in rows if not row.stage.startswith(EVALUATION)]
    by_step = {name: [values[name] or 0.0 for values in steps] for name in LABELS}
    held_out = {
        f"{HELD_OUT}{row.stage.partition('/')[2]}": row.values["accuracy"] or 0.0
        for row in rows
        if row.stage.startswith(EVALUATION)  # the last of a name is the one at the end
    }
    last = {name: fmean(values[-NUM_LAST_STEPS:]) for name, values in by_step.items()}
    return {"final": {**held_out, **last}, "steps": by_step}


async def compare(options: argparse.Namespace, recipe: Recipe, found: Found, folder: Path) -> None:
    """Fills `found` with what could be learnt."""
    shop = Workshop(folder, asyncio.Semaphore(options.jobs), options.deadline_s, options.threads)
    models: dict[int, Path | None] = {}

    async def warm_up(seed: int) -> None:
        if recipe.sft is None:
            models[seed] = None
        elif run := await shop.train(f"warm-up-{seed}", warm_up_recipe(recipe, seed)):
            models[seed] = run / "final"

    async def learn(arm: str, seed: int) -> None:
        run = await shop.train(f"{arm}-{seed}", arm_recipe(recipe, arm, seed, options.steps, models[seed]))
        if run is None:
            return
        found["arms"][arm][str(seed)] = learnt = measured(run)
        shutil.rmtree(run)
        write(found, options.json)
        say(f"{arm}-{seed}: " + ", ".join(f"{name} {value:.3f}" for name, value in learnt["final"].items()))

    async with asyncio.TaskGroup() as runs:
        for seed in options.all_seeds:
            runs.create_task(warm_up(seed))
    async with asyncio.TaskGroup() as runs:
        # Arm by arm: what is left out when time is short is a whole arm.
        for arm in options.arms:
            for seed in sorted(models):
                runs.create_task(learn(arm, seed))


# What was found.


def nothing_yet(options: argparse.Namespace) -> Found:
    return {
        "recipe": options.recipe.stem,
        "settings": {"steps": options.steps, "set": options.overrides},
        "machine": machine(),
        "arms": {arm: {} for arm in options.arms},
    }


def merged(files: Sequence[Path]) -> Found:
    first, *others = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    found: Found = first
    for other in others:
        if (other["recipe"], other["settings"]) != (found["recipe"], found["settings"]):
            raise UserError("--from: the files are of different recipes or settings; show them one by one")
        for arm, runs in other["arms"].items():
            found["arms"].setdefault(arm, {}).update(runs)
    return found


def show(found: Found, options: argparse.Namespace) -> None:
    print(f"{found['recipe']}, {found['settings']['steps']} steps, {found['machine']}")
    for override in found["settings"]["set"]:
        print(f"  --set {override}")
    print(draw_table(found))
    if options.figure is not None:
        replace_file(options.figure, draw_figure(found).encode())


def write(found: Found, path: Path | None) -> None:
    if path is not None:
        replace_file(path, json.dumps(found, indent=1).encode())


def machine() -> str:
    import torch

    name = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=QUICKSTART)
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="in all arms")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["paper", "random", "off"])
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40, help="of the recipe's first stage")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", type=int, help="of torch in each run; by default the cores shared out")
    parser.add_argument("--deadline-s", type=float, default=3600.0, help="of each run")
    parser.add_argument("--from", dest="files", metavar="FILE.json", type=Path, nargs="+", help="show, run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    for file in (options.json, options.figure):
        if file is not None and not file.parent.is_dir():
            parser.error(f"{file}: there is no folder {file.parent}")
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.jobs)
    options.all_seeds = range(options.first_seed, options.first_seed + options.seeds)
    return options


def main() -> int:
    options = parse_arguments()
    if options.files:
        found = merged(options.files)
        write(found, options.json)
        show(found, options)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the runs end with it
    recipe = load_recipe(options.recipe, options.overrides)
    if not recipe.stages:
        raise UserError(f"{options.recipe} has no [[stages]], so the arms have nothing to train on")
    found = nothing_yet(options)
    # Of a run that was killed, a program may still be writing.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asyncio.run(compare(options, recipe, found, Path(folder)))
    missing = [
        f"{arm}-{seed}" for arm in options.arms for seed in options.all_seeds if str(seed) not in found["arms"][arm]
    ]
    if any(found["arms"].values()):
        show(found, options)
    if missing:
        say(f"missing: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
