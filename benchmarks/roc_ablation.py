"""Does resampling on correct help, and which part of it does? Arms that differ in nothing else, side by side.

    python benchmarks/roc_ablation.py [--recipe FILE] [--set KEY=VALUE …] [--arms paper quotas random off_g off_2g …]
        [--then release errors format] [--seeds 3] [--steps 40] [--jobs N] [--folder FOLDER] [--json FILE]
        [--figure FILE.svg]
    python benchmarks/roc_ablation.py --from FILE.json … [--json FILE] [--figure FILE.svg]

With G the recipe's group size, of 2G samples of each problem (`algo.oversample_factor` 2):

- `paper`, GRPO-RoC, keeps G, by class, right ones by their quality;
- `quotas` keeps G, by class as `paper` does, right ones uniformly: the class balance without the quality;
- `random` keeps G uniformly, blind to both;
- `release` is the released code's choice; `errors` and `format` are `paper` with one of its two penalties;
- `overlong`, `repetition` and `format_reward` are `paper` with what the report tried and gave up: truncated rollouts
  left out, repeated runs of tokens as a penalty, and a reward of 0.5 for form alone;
- `off` is plain GRPO on all 2G; `off_2g` the same in half the steps with twice the optimizer steps in each, so that it
  trains on as many rollouts as the others, as many at a time;
- `off_g` is plain GRPO on G samples, the report's baseline: it samples half as many.

All arms of a seed start from the same model, the recipe's after its warm-up, and meet the same problems in the same
order. They train for `--steps` steps of its first stage. PLAN below says what is tested and was fixed before the runs.

Each run is `rstar2 train` in a separate process with a deadline. One that fails is reported with the last lines that it
printed, and leaves the others alone; the exit code is then 1. Runs go seed by seed, `--then` after all others: where
time is short, complete seeds are missing. The JSON is rewritten whenever a run ends, and a run that is in it already is
not made again. Warm-ups that `--folder` holds are used again. `--from` shows such files again without a run, several of
the same settings as one.
"""

import argparse
import ast
import asyncio
import json
import math
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from roc_figures import HELD_OUT, STEP_MEASURES, Found, Learnt, draw_figure, draw_table, draw_tests, num_last

from rstar2.config import Recipe, load_recipe
from rstar2.config.emit import to_toml
from rstar2.errors import UserError
from rstar2.records import RunView, Selection, Trace
from rstar2.records.atomic import replace_file

QUICKSTART = Path("quickstart")
PLAN = """\
What is tested, fixed before the first run (2026-11-16).

Report: resampling on correct lowers the share of failing calls inside right rollouts, raises accuracy and shortens
responses, against GRPO without it.
Seeds: ten that no earlier run had (10 to 19) for paper, quotas, random, off_g and off_2g. One counts in a contrast if
both its runs ended.
release, errors and format run after them as far as time allows, and are described, not tested.
Steps: fixed by how long a step takes, before any outcome is looked at.

Primary outcome: share of failing calls in right rollouts, mean of the last quarter of the steps.
  H1: paper differs from quotas (what the quality weights do, at equal class balance).
  H2: paper differs from random (what all of the choice does, at equal cost).
Test: paired differences by seed; mean with a 95% t-interval; exact two-sided sign-flip p; Holm over H1 and H2; 0.05.
  H1 and H2 both below 0: the claim holds here, and by the weights.
  H2 alone below 0: the choice helps, but that is not shown for the weights: class balance may be all of it.
  H1 alone below 0: the weights help, and lose it again to something else that random does.
  Neither: not shown here; the interval says how large an effect is ruled out.
  One above 0: against the report.

Secondary outcomes, each a separate family (Holm over its contrasts): the primary one for paper - off_g, paper -
off_2g and quotas - random; and for these and the two above: held-out accuracy (three sets), accuracy in training,
response tokens in training and held out, failing calls in right held-out rollouts, calls and trivial calls per right
rollout, and seconds of training until the mean accuracy of three steps reaches the highest that all
five arms of the seed reach.
  H3: accuracy of paper above that of off_g, held out (the report's comparison) and of off_2g (equal training).
  H4: responses of paper shorter than those of quotas, random, off_g.
  H5: more trivial calls per right rollout in paper than in quotas: the weights breed calls that cannot fail. A call is
      trivial if its program only prints or evaluates constants.
A secondary finding is called one if its p by Holm is below 0.05, and is a lead, not a proof.\
"""
OFF = {"selection": "off", "oversample_factor": 1}
ARMS = {
    "paper": {"selection": "paper"},
    "quotas": {"selection": "quotas"},
    "random": {"selection": "random"},
    "off_g": OFF,
    "off_2g": OFF,
    "off": OFF,
    "release": {"selection": "release"},
    "errors": {"selection": "paper", "penalty": "errors"},
    "format": {"selection": "paper", "penalty": "format"},
    "overlong": {"selection": "paper", "overlong_filtering": True},
    "repetition": {"selection": "paper", "penalty": "repetition"},
    "format_reward": {"selection": "paper", "format_reward": 0.5},
}
"""Name: what it sets in [algo]; how many plain GRPO samples is set by `arm_recipe`."""
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
    if arm in ("off", "off_2g"):
        tree["algo"] |= {"group_size": recipe.algo.num_sampled}
    if arm == "off_2g":
        steps = math.ceil(steps / recipe.algo.oversample_factor)
        tree["train"]["optimizer_steps_per_batch"] *= recipe.algo.oversample_factor
    if model is not None:
        tree["model"] |= {"name": str(model), "tiny": None}
    # However fast it learns.
    stage = tree["stages"][0] | {"steps": steps, "target_reward": None}
    return Recipe.model_validate({**tree, "seed": seed, "sft": None, "stages": (stage,)})


# The runs.


@dataclass(frozen=True, slots=True)
class RunPool:
    """Makes runs, a few at a time, each to its end or to its deadline."""

    folder: Path
    places: asyncio.Semaphore
    deadline_s: float
    num_threads: int

    async def train(self, name: str, recipe: Recipe) -> Path | None:
        """The run's folder; None if it did not end well, which is then said."""
        run, recipe_file, log_file = (self.folder / f"{name}{suffix}" for suffix in ("", ".toml", ".log"))
        shutil.rmtree(run, ignore_errors=True)  # what an earlier try left
        recipe_file.write_text(to_toml(recipe), encoding="utf-8")
        arguments = ["train", str(recipe_file), "--run", str(run), "--threads", str(self.num_threads)]
        async with self.places:
            say(f"{name} begins")
            trouble = await self._trouble(["-m", "rstar2", *arguments], log_file)
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
    run = RunView(folder)
    rows = list(run.metrics())
    steps = [row for row in rows if not row.stage.startswith(EVALUATION)]
    for row in steps:
        row.values["sampled_tokens"] = (row.values["tokens_per_s"] or 0.0) * (row.values["generate_s"] or 0.0)
    by_step = {name: [row.values[name] or 0.0 for row in steps] for name in STEP_MEASURES}
    held_out = {
        f"{HELD_OUT}{row.stage.partition('/')[2]}": row.values["accuracy"] or 0.0
        for row in rows
        if row.stage.startswith(EVALUATION)  # the last of a name is the one at the end
    }
    means = {name: fmean(values[-num_last(len(steps)) :]) for name, values in by_step.items()}
    totals = {"sampled_tokens": sum(by_step["sampled_tokens"]), "seconds": sum(by_step["step_s"])}
    del means["step_s"]
    last_steps = [row.step for row in steps][-num_last(len(steps)) :]
    final = {**held_out, **means, **totals, **looked_at(run, last_steps), "trained_rollouts": num_trained(run)}
    return {
        "final": {name: rounded(value) for name, value in final.items()},
        "steps": {name: [rounded(value) for value in values] for name, values in by_step.items()},
    }


def looked_at(run: RunView, steps: Sequence[int]) -> dict[str, float]:
    """What metrics do not say, of the traces of the last steps and of the evaluation after them."""
    traces = [slim(trace) for step in steps for trace in run.traces(step)]
    right = [trace for trace in traces if trace["right"]]
    evaluated = [trace for trace in traces if trace["evaluated"]]
    trained = [trace for trace in right if not trace["evaluated"]]
    found_right = [trace for trace in right if trace["evaluated"]]
    return {
        "trivial_calls_right": ratio(sum(trace["trivial"] for trace in trained), len(trained)),
        "calls_right": ratio(sum(trace["calls"] for trace in trained), len(trained)),
        "held_out_error_share_right": ratio(
            sum(trace["failed"] for trace in found_right), sum(trace["calls"] for trace in found_right)
        ),
        "held_out_trivial_calls_right": ratio(sum(trace["trivial"] for trace in found_right), len(found_right)),
        "held_out_response_tokens": ratio(sum(trace["tokens"] for trace in evaluated), len(evaluated)),
    }


def slim(trace: Trace) -> dict[str, int]:
    num_calls, num_failed = trace.own_calls
    programs = [call.arguments.get("code") for turn in trace.turns for call in turn.calls]
    return {
        "right": trace.reward == 1,
        "evaluated": trace.group_id.startswith(EVALUATION),
        "calls": num_calls,
        "failed": num_failed,
        "trivial": sum(isinstance(program, str) and is_trivial(program) for program in programs),
        "tokens": trace.num_response_tokens,
    }


def num_trained(run: RunView) -> int:
    groups = (group for step in run.group_steps() for group in run.groups(step))
    return sum(selection is Selection.KEPT for group in groups for selection in group.selections)


def is_trivial(program: str) -> bool:
    """It prints or evaluates constants and does nothing else: such a call cannot fail, and tells nothing."""
    try:
        statements = ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    constants: set[str] = set()

    def are_constant(values: Iterable[ast.expr]) -> bool:
        return all(map(is_constant, values))

    def is_constant(value: ast.expr) -> bool:
        match value:
            case ast.Constant():
                return True
            case ast.UnaryOp(operand=operand):
                return is_constant(operand)
            case ast.Tuple(elts=values) | ast.List(elts=values):
                return are_constant(values)
            case ast.Name(id=name):
                return name in constants
            case ast.Call(func=ast.Name(id="print"), args=values, keywords=keywords):
                return are_constant([*values, *(keyword.value for keyword in keywords)])
        return False

    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Pass():
                pass
            case ast.Expr(value=value) if is_constant(value):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_constant(value):
                constants.add(name)
            case _:
                return False
    return True


def ratio(part: float, total: float) -> float:
    return part / total if total else 0.0


def rounded(value: float) -> float:
    """Enough digits for everything that is made of it."""
    return float(f"{value:.6g}")


async def compare(options: argparse.Namespace, recipe: Recipe, found: Found, folder: Path) -> None:
    """Fills `found` with what could be learnt."""
    pool = RunPool(folder, asyncio.Semaphore(options.jobs), options.deadline_s, options.threads)
    wanted = [(arm, seed) for arms in (options.arms, options.then) for seed in options.all_seeds for arm in arms]
    missing = [(arm, seed) for arm, seed in wanted if str(seed) not in found["arms"][arm]]

    async def warm_up(seed: int) -> Path | None:
        model = folder / f"warm-up-{seed}" / "final"
        if recipe.sft is None or model.is_dir():
            return model
        return model if await pool.train(f"warm-up-{seed}", warm_up_recipe(recipe, seed)) else None

    async def learn(arm: str, seed: int) -> None:
        model = await warm[seed]
        if model is None:
            return
        start = model if recipe.sft is not None else None
        run = await pool.train(f"{arm}-{seed}", arm_recipe(recipe, arm, seed, options.steps, start))
        if run is None:
            return
        try:
            found["arms"][arm][str(seed)] = await asyncio.to_thread(measured, run)
        except Exception as error:  # the other runs must not end with it
            say(f"{arm}-{seed} cannot be read: {error!r}")
            return
        shutil.rmtree(run, ignore_errors=True)
        write(found, options.json)
        say(f"{arm}-{seed} ended")

    if not missing:
        return
    async with asyncio.TaskGroup() as runs:
        warm = {seed: runs.create_task(warm_up(seed)) for seed in sorted({seed for _, seed in missing})}
        # All wait for the last warm-up, so that they take their places in this order.
        await asyncio.wait(warm.values())
        for arm, seed in missing:
            runs.create_task(learn(arm, seed))


# What was found.


def nothing_yet(options: argparse.Namespace) -> Found:
    return {
        "recipe": options.recipe.stem,
        "settings": {"steps": options.steps, "jobs": options.jobs, "set": options.overrides},
        "machine": machine(),
        "arms": {},
    }


def found_before(options: argparse.Namespace) -> Found:
    """What the JSON file holds already, with a place for each arm."""
    found = fresh = nothing_yet(options)
    if options.json is not None and options.json.is_file():
        found = merged([options.json])
        if (found["recipe"], found["settings"]) != (fresh["recipe"], fresh["settings"]):
            raise UserError(f"{options.json} is of another recipe or other settings: give --json a new file")
    for arm in (*options.arms, *options.then):
        found["arms"].setdefault(arm, {})
    return found


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
    print("", draw_table(found), "", PLAN, "", draw_tests(found), sep="\n")
    if options.figure is not None:
        replace_file(options.figure, draw_figure(found).encode())


def write(found: Found, path: Path | None) -> None:
    if path is not None:
        replace_file(path, json.dumps(found).replace('}, "', '},\n "').encode())


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
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["paper", "quotas", "random", "off_g", "off_2g"])
    parser.add_argument("--then", nargs="+", choices=ARMS, default=[], metavar="ARM", help="after all seeds of --arms")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40, help="of the recipe's first stage")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--threads", type=int, help="of torch in each run; by default the cores shared out")
    parser.add_argument("--deadline-s", type=float, default=3600.0, help="of each run")
    parser.add_argument("--folder", type=Path, help="of the runs; by default one that is deleted at the end")
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
    found = found_before(options)
    # Of a run that was killed, a program may still be writing.
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    own = tempfile.TemporaryDirectory(ignore_cleanup_errors=True) if options.folder is None else None
    with own or nullcontext(options.folder) as folder:
        asyncio.run(compare(options, recipe, found, Path(folder)))
    missing = [
        f"{arm}-{seed}"
        for arm in (*options.arms, *options.then)
        for seed in options.all_seeds
        if str(seed) not in found["arms"][arm]
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
