"""Does a tree find more right answers than flat samples that generate as many tokens? Search at test time.

    python benchmarks/tree_search.py quickstart --model RUN [--json FILE]
    python benchmarks/tree_search.py smollm2 [--set KEY=VALUE …] [--json FILE]
    python benchmarks/tree_search.py --from FILE.json FILE.json

`quickstart` asks the model of a run of `rstar2 train quickstart`; `smollm2` asks the agent that comes with rstar2,
whose base `rstar2 models get smollm2-135m` downloads. Each seed is two evaluations by `rstar2 eval`, of the same
problems: flat, and a tree whose budget is what the flat one generated a problem. The JSON is rewritten after each seed,
and a seed in it is not run again.

What is tested, fixed before the first run (2026-11-19):

Hypothesis: maj@k of a tree differs from maj@k of flat samples at equal generated tokens. It may as well be lower:
leaves below one fork are correlated.
Flat: 8 samples a problem. Tree: at most 24 leaves, 6 of them from the prompt, `--tree-tokens` the mean tokens that the
flat samples of a problem generated. Temperature 0.6, as in the report.
Seeds, each with problems of its own: quickstart 0 to 11, 100 problems of its six families; smollm2 0 to 7, 30 word
problems, short and long. All count, however many samples were lost or undecided; how many is printed.
Test: for each of the two tasks, differences by seed; mean with a 95% t-interval; exact two-sided sign-flip p; Holm over
the two; 0.05. The least p before Holm is 0.0005 with 12 seeds, 0.0078 with 8.
Secondary, described and not tested: pass@k, pass@1 (the mean over problems of the share of right samples), and the
tokens, samples and calls of a problem; what leaves share counts once.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from roc_ablation import machine
from roc_figures import Difference, holm, paired_difference

from rstar2.records import RunView
from rstar2.records.atomic import replace_file

NUM_FLAT, NUM_LEAVES = 8, 24
TESTED = "maj@k"
ARMS = ("flat", "tree")


@dataclass(frozen=True, slots=True)
class Task:
    bench: str
    num_seeds: int
    num_problems: int


TASKS = {
    "quickstart": Task("procedural:big_product+modular_power+gcd+lcm+range_sum+base_conversion", 12, 100),
    "smollm2": Task("procedural:word_problems+long_word_problems", 8, 30),
}
Measures = dict[str, float]
Found = dict[str, Any]


def evaluate(task: Task, seed: int, options: argparse.Namespace, *flags: str) -> Measures:
    """The measures of one evaluation. Its exit code is 1 if samples are missing from the scores."""
    model = [] if options.model is None else ["--recipe", str(options.model)]
    model += [part for override in options.overrides for part in ("--set", override)]
    with TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "rstar2", "eval", *model, "--bench", task.bench, "--json", *flags]
        command += ["--problems", str(task.num_problems), "--seed", str(seed), "--run", str(run)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False, timeout=options.deadline_s)
        if done.returncode not in (0, 1):
            sys.exit(f"rstar2 eval ended with {done.returncode}")
        view = RunView(run)
        traces = [trace for step in view.trace_steps() for trace in view.traces(step)]
    (result,) = json.loads(done.stdout)["results"].values()
    num_calls = sum(len(turn.results) for trace in traces for turn in trace.own_turns)
    return {
        TESTED: result["majority_at_k"],
        "pass@k": result["pass_at_k"],
        "pass@1": result["pass_at"]["1"],
        "tokens a problem": result["mean_generated_tokens"],
        "samples a problem": result["num_scored"] / result["num_problems"],
        "calls a problem": num_calls / result["num_problems"],
        "lost or undecided": result["num_undecided"] + result["num_faults"] + result["num_missing"],
    }


def compare(task: Task, seed: int, options: argparse.Namespace) -> dict[str, Measures]:
    flat = evaluate(task, seed, options, "--samples", str(NUM_FLAT))
    budget = round(flat["tokens a problem"])
    tree = evaluate(task, seed, options, "--tree", str(NUM_LEAVES), "--tree-tokens", str(budget))
    return {"flat": flat, "tree": tree}


def change(found: Found, name: str) -> Difference:
    return paired_difference([runs["tree"][name] - runs["flat"][name] for runs in found["seeds"].values()])


def show(documents: list[Found]) -> None:
    for found in documents:
        seeds = list(found["seeds"].values())
        print(f"{found['task']}: {len(seeds)} of {TASKS[found['task']].num_seeds} seeds, {found['machine']}")
        for name in seeds[0]["flat"]:
            flat, tree = (fmean(runs[arm][name] for runs in seeds) for arm in ARMS)
            line = f"  {name:>18}: flat {flat:.4g}, tree {tree:.4g}"
            if len(seeds) > 1:
                difference = change(found, name)
                line += f", {difference.mean:+.4g} [{difference.low:+.4g}, {difference.high:+.4g}]"
            print(line)
    complete = {found["task"]: found for found in documents if len(found["seeds"]) == TASKS[found["task"]].num_seeds}
    if complete.keys() == TASKS.keys():
        raw = [change(found, TESTED).p for found in complete.values()]
        for task, p, adjusted in zip(complete, raw, holm(raw), strict=True):
            print(f"{task}, {TESTED}: p {p:.4f}, Holm {adjusted:.4f}")


def read(file: Path) -> Found:
    found: Found = json.loads(file.read_text("utf-8"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("--model", type=Path, help="a training run of the quickstart")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="a field of the recipe of both")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--deadline-s", type=int, default=3600, help="of one evaluation")
    parser.add_argument("--from", dest="earlier", type=Path, nargs="+", help="only print what these files hold")
    options = parser.parse_args()
    if options.earlier is not None:
        show([read(file) for file in options.earlier])
        return
    if options.task is None or (options.task == "quickstart") != (options.model is not None):
        parser.error("name a task, with --model for quickstart only; or files with --from")
    task = TASKS[options.task]
    found: Found = {"task": options.task, "machine": machine(), "seeds": {}}
    if options.json is not None and options.json.exists():
        found = read(options.json)
        if found["task"] != options.task:
            parser.error(f"{options.json} holds {found['task']}")
    for seed in map(str, range(task.num_seeds)):
        if seed in found["seeds"]:
            continue
        found["seeds"][seed] = compare(task, int(seed), options)
        if options.json is not None:
            replace_file(options.json, (json.dumps(found, indent=1) + "\n").encode())
        print(f"seed {seed}: {found['seeds'][seed]}", flush=True)
    show([found])


if __name__ == "__main__":
    main()
