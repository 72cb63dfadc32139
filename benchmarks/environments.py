"""Do the examples of environments learn? Held-out accuracy before and after reinforcement learning, seed by seed.

    python benchmarks/environments.py NAME [--seeds 0 1 2 3 4] [--jobs 1]

NAME is a recipe of examples/environments: code_tests, search, game or shop. Each seed is `rstar2 train` in a separate
process with one thread. The JSON in benchmarks/results is rewritten whenever a run ends. A seed that is in it is not
run again. The bar of the first three: at least 4 of 5 seeds improve by 30 points or reach 70%.

What is tested of `shop`, whose agent is pydantic-ai's, fixed before the first of its runs (2026-11-19): its task and
settings were chosen with seed 0, so it is run with `--seeds 1 2 3 4 5 6`, which no earlier run had. Hypothesis: its
held-out accuracy at the end differs from that after the warm-up. Test: differences by seed, mean with a 95% t-interval,
exact two-sided sign-flip p below 0.05; with six seeds the least p is 0.031.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from roc_figures import paired_difference

from rstar2.records import RunView

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "environments"
DEADLINE_S = 3600
"""For one run, on a machine that is busy with other work."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[recipe.stem for recipe in EXAMPLES.glob("*.toml")])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    file = ROOT / "benchmarks" / "results" / f"environments_{options.name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    missing = [str(seed) for seed in options.seeds if str(seed) not in found]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        write_warm_up(options.name)
        runs = pool.map(lambda seed: train(options.name, seed, Path(folder)), missing)
        for seed, run in zip(missing, runs, strict=True):
            found[seed] = run
            file.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
            print(f"seed {seed}: {run}", flush=True)
    asked = {seed: found[seed] for seed in map(str, options.seeds)}
    num_learnt = sum(map(has_learnt, asked.values()))
    print(f"{options.name}: {num_learnt} of {len(asked)} seeds improve by 30 points or reach 70%")
    if len(asked) > 1:
        gain = paired_difference([run["end"] - run["start"] for run in asked.values()])
        print(f"gain {gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}], {gain.num_pairs} seeds, p {gain.p:.4f}")
    print(table_row(options.name, asked))


def write_warm_up(name: str) -> None:
    """As the first lines of the example say: what it prints is its warm-up."""
    made = subprocess.run([sys.executable, f"{name}.py"], cwd=EXAMPLES, check=True, stdout=subprocess.PIPE)
    if made.stdout:
        (EXAMPLES / f"{name}_warmup.jsonl").write_bytes(made.stdout)


def train(name: str, seed: str, folder: Path) -> dict[str, float]:
    run = folder / seed
    command = ["timeout", str(DEADLINE_S), sys.executable, "-m", "rstar2", "train", f"{name}.toml"]
    command += ["--set", f"seed={seed}", "--run", str(run), "--threads", "1"]
    began = time.monotonic()
    with (folder / f"{seed}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=EXAMPLES, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"seed {seed} failed:\n{(folder / f'{seed}.log').read_text()[-2000:]}")
    seconds = {"minutes": time.monotonic() - began, "cpu_minutes": used.ru_utime + used.ru_stime}
    return accuracies(run) | {name: round(value / 60, 1) for name, value in seconds.items()}


def accuracies(run: Path) -> dict[str, float]:
    """Held out, after the warm-up and at the end."""
    found = [row.values["accuracy"] for row in RunView(run).metrics() if row.stage.startswith("eval:")]
    return {"start": round(found[0] or 0.0, 4), "end": round(found[-1] or 0.0, 4)}


def table_row(name: str, found: dict[str, dict[str, float]]) -> str:
    """As in docs/environments-examples.md."""
    curves = ", ".join(f"{run['start']:.0%} → {run['end']:.0%}" for run in found.values())
    minutes = [run["cpu_minutes"] for run in found.values()]
    return f"| `{name}` | {curves} | {min(minutes):g} to {max(minutes):g} |"


def has_learnt(run: dict[str, float]) -> bool:
    return run["end"] - run["start"] >= 0.3 or run["end"] >= 0.7


if __name__ == "__main__":
    main()
