"""How large the house is, and how long the ways through it are. `python scripts/house.py [--json]`

Of the sources (read, not run):

- files and lines by folder, empty lines and comments included;
- public names: classes, functions and assigned names (constants, type aliases) at module level in src, without a
  leading underscore;
- lengths of functions and methods in lines, from `def` to their end;
- public classes of src whose name several files define;
- private helpers called once: functions and methods with one leading underscore whose name their file reads once;
- files of src under 30 lines, `__init__.py` left out.

Of a run (one training step of a real recipe on one problem, in this process, on the CPU; sys.setprofile watches):

- *entered in a step*: the distinct functions of rstar2 that are called below `STEP`, in its own task and in all tasks
  and threads that are started from there, and their files. Code that only records or shows (`NOT_COUNTED`) is left
  out. Code in its own threads and callbacks, as the engine's decoding, is not below the step.
- *from problem to gradient*: of these, the functions that a reader passes on the way: the callers, up to `STEP`, of
  each of the `STATIONS`, where tokens are sampled, a program runs, an answer is graded, rollouts are chosen, the loss
  is computed and the weights change. A task's caller is the function that created it.
- *chain to the gradient*, *chain to the sandbox*: the longest single chain of callers from `STEP` to `policy_loss` and
  to the executor's `run`.
- *text to sandbox and back*: the distinct functions entered in any thread of this process from the moment that an
  engine has given a turn's last tokens, which hold one tool call, until it is asked for the next turn.

Comprehensions and lambdas count as part of the function around them; the methods that dataclasses generate are not
counted.
"""

import argparse
import ast
import asyncio
import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "rstar2"
FOLDERS = {"src": "*.py", "tests": "*.py", "benchmarks": "*.py", "scripts": "*.py", "examples": "*.py", "docs": "*.md"}
SHORT_FILE_LINES = 30

STEP = "train/trainer.py:Trainer._run_steps"
GRADIENT = "algo/loss.py:policy_loss"
SANDBOX = "sandbox/local.py:LocalExecutor.run"
STATIONS = (
    "engine/embedded/engine.py:EmbeddedEngine.begin",
    SANDBOX,
    "grading/grader.py:Grader.grade",
    "algo/group.py:choose_rollouts",
    GRADIENT,
    "train/learning/optimizer.py:Optimizer.step",
)
NOT_COUNTED = ("records/", "train/reporting/", "errors.py")

QUESTION, ANSWER, PROGRAM = "What is 12 times 34?", "408", "print(12 * 34)"
CALL = {"name": "execute_python_code_with_standard_io", "arguments": {"code": PROGRAM, "input": ""}}
CONVERSATION = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": "<reason></reason>", "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "content": ANSWER},
    {"role": "assistant", "content": f"<reason></reason>\n<answer>\\boxed{{{ANSWER}}}</answer>"},
]
NUM_CONVERSATIONS = 400


# The sources.


def measure_sources() -> dict[str, Any]:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCES.rglob("*.py"))}
    lengths = {f"{_name(path)}:{node.name}": _num_lines(node) for path, node in _functions(trees)}
    return {
        "files": {folder: len(_files(folder)) for folder in FOLDERS},
        "lines": {folder: sum(map(_count_lines, _files(folder))) for folder in FOLDERS},
        "public_names": dict(sum((_public_names(tree) for tree in trees.values()), Counter())),
        "functions": len(lengths),
        "function_lines_median": median(lengths.values()),
        "function_lines_largest": dict(Counter(lengths).most_common(5)),
        "repeated_classes": _repeated_classes(trees),
        "private_helpers_called_once": dict(sum((_called_once(tree) for tree in trees.values()), Counter())),
        "short_files": sum(_count_lines(path) < SHORT_FILE_LINES for path in trees if path.name != "__init__.py"),
    }


def _files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob(FOLDERS[folder]))


def _count_lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def _name(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


def _functions(trees: dict[Path, ast.Module]) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def _num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _public_names(tree: ast.Module) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            counts["classes"] += not node.name.startswith("_")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counts["functions"] += not node.name.startswith("_")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            counts["constants"] += sum(not name.startswith("_") for name in names)
    return counts


def _repeated_classes(trees: dict[Path, ast.Module]) -> dict[str, list[str]]:
    places = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(_name(path))
    return {name: files for name, files in sorted(places.items()) if len(files) > 1}


def _called_once(tree: ast.Module) -> Counter[str]:
    nodes = list(ast.walk(tree))
    reads = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    reads.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    counts: Counter[str] = Counter()
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") and not node.name.startswith("__") and reads[node.name] == 1:
            counts["functions" if node in tree.body else "methods"] += 1
    return counts


# A run.


def _place(code: CodeType) -> str | None:
    """`folder/file.py:qualified.name` of a function of rstar2; None of anything else, comprehensions included."""
    if not code.co_filename.startswith(f"{SOURCES}/") or code.co_name.startswith("<"):
        return None
    return f"{code.co_filename[len(str(SOURCES)) + 1 :]}:{code.co_qualname.replace('.<locals>', '')}"


class Watch:
    """Sees every call in this process while it is used as a context, and who called."""

    def __init__(self, on_call: Callable[[str, "Watch", FrameType], None]) -> None:
        self._on_call = on_call
        self._places: dict[CodeType, str | None] = {}
        self._tasks: dict[asyncio.Task[Any], tuple[str, ...]] = {}
        """The chain of callers that created each task."""
        self._thread = threading.local()

    def __enter__(self) -> "Watch":
        self._run_in_executor = asyncio.BaseEventLoop.run_in_executor
        watch = self

        def run_in_executor(loop: Any, executor: Any, function: Any, *arguments: Any) -> Any:
            chain = watch.chain(sys._getframe(1))

            def run(*given: Any) -> Any:
                watch._thread.chain = chain
                try:
                    return function(*given)
                finally:
                    watch._thread.chain = ()

            return watch._run_in_executor(loop, executor, run, *arguments)

        asyncio.BaseEventLoop.run_in_executor = run_in_executor  # type: ignore[method-assign]
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        asyncio.BaseEventLoop.run_in_executor = self._run_in_executor  # type: ignore[method-assign]

    def follow_tasks(self) -> None:
        """Record who creates the tasks of the running event loop."""

        def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            task = asyncio.Task(coroutine, loop=loop, **options)
            self._tasks[task] = self.chain(sys._getframe(1))
            return task

        asyncio.get_running_loop().set_task_factory(make_task)

    def chain(self, frame: FrameType | None) -> tuple[str, ...]:
        """The functions of rstar2 that led to this frame, the outermost first."""
        places = []
        while frame is not None:
            if (place := self._place(frame.f_code)) is not None:
                places.append(place)
            frame = frame.f_back
        return (*self._before(), *reversed(places))

    def _before(self) -> tuple[str, ...]:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return getattr(self._thread, "chain", ())
        return () if task is None else self._tasks.get(task, ())

    def _place(self, code: CodeType) -> str | None:
        if code not in self._places:
            self._places[code] = _place(code)
        return self._places[code]

    def _see(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (place := self._place(frame.f_code)) is not None:
            self._on_call(place, self, frame)


class StepWatch:
    """What is entered below `STEP`, and the chains of callers to each of the `STATIONS`."""

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.chains: dict[str, tuple[str, ...]] = dict.fromkeys(STATIONS, ())
        """The longest to each."""
        self.on_the_way: set[str] = set()
        self._has_begun = False

    def see(self, place: str, watch: Watch, frame: FrameType) -> None:
        self._has_begun |= place == STEP
        if not self._has_begun or (place in self.entered and place not in self.chains):
            return
        chain = watch.chain(frame)
        if STEP not in chain:
            return
        self.entered.add(place)
        if place in self.chains:
            below = chain[chain.index(STEP) :]
            self.on_the_way |= set(below)
            self.chains[place] = max(self.chains[place], below, key=len)


def measure_step(folder: Path) -> dict[str, Any]:
    """One step of the quickstart recipe, with a model that was just taught the one conversation."""
    from rstar2.config import load_recipe
    from rstar2.train import Observers, prepare_new, train

    (folder / "talk.jsonl").write_text((json.dumps({"messages": CONVERSATION}) + "\n") * NUM_CONVERSATIONS)
    (folder / "problem.jsonl").write_text(json.dumps({"problem": QUESTION, "answer": ANSWER}) + "\n")
    recipe = load_recipe(
        "quickstart",
        [
            f"data.format={{source='file:{folder}/talk.jsonl'}}",
            f"data.train={{source='file:{folder}/problem.jsonl'}}",
            "stages=[{name='only', data=['train'], max_response_tokens=192, max_turns=2, steps=1}]",
            *("eval.benchmarks=[]", "train.prompts_per_step=1", "algo.drop_equal_groups=false", "sft.lr=1e-2"),
            *("model.tiny.hidden_size=64", "algo.group_size=2"),
        ],
    )
    step = StepWatch()

    async def run(watch: Watch) -> None:
        watch.follow_tasks()
        await train(prepare_new(recipe, folder / "run"), Observers())

    with Watch(step.see) as watch:
        asyncio.run(run(watch))
    for target, chain in step.chains.items():
        if not chain:
            sys.exit(f"the step {STEP} never came to {target}: correct the names at the top of this file")
    counted = {place for place in step.entered if not place.startswith(NOT_COUNTED)}
    return {
        "from_problem_to_gradient": {**_ways(step.on_the_way), "entered": sorted(step.on_the_way)},
        "entered_in_a_step": _ways(counted),
        "entered_in_a_step_by_folder": dict(sorted(Counter(place.split("/")[0] for place in counted).items())),
        "chain_to_the_gradient": {**_ways(step.chains[GRADIENT]), "chain": step.chains[GRADIENT]},
        "chain_to_the_sandbox": {**_ways(step.chains[SANDBOX]), "chain": step.chains[SANDBOX]},
    }


def _ways(places: Sequence[str] | set[str]) -> dict[str, Any]:
    return {"functions": len(places), "files": len({place.partition(":")[0] for place in places})}


class OneCallEngine:
    """Satisfies `Engine`: a tool call, then an answer. Says when the call is out, and when it is asked again."""

    def __init__(
        self, encode: Callable[[str], list[int]], end_of_turn_id: int, on_text: Callable[[bool], None]
    ) -> None:
        self._turns = [
            f"</reason>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
            f"</reason>\n<answer>\\boxed{{{ANSWER}}}</answer>",
        ]
        self._encode, self._end_of_turn_id, self._on_text = encode, end_of_turn_id, on_text

    async def generate(self, *_: object) -> AsyncIterator[Any]:
        from rstar2.engine import Chunk
        from rstar2.records import StopReason

        self._on_text(False)
        ids = (*self._encode(self._turns.pop(0)), self._end_of_turn_id)
        self._on_text(bool(self._turns))
        yield Chunk(ids, (0.0,) * len(ids), stop_reason=StopReason.END_OF_TURN)

    def load(self) -> Any:
        raise NotImplementedError

    async def cancel(self, _session: str) -> None:
        raise NotImplementedError

    async def release(self, _session: str) -> None:
        pass

    async def close(self) -> None:
        pass


def measure_call(model: Path) -> dict[str, Any]:
    """One rollout with one tool call, in a sandbox that has run a program before."""
    from rstar2.agent import Agent, PythonTool, load_chat
    from rstar2.records import Problem
    from rstar2.sandbox import LocalExecutor, Request

    entered: set[str] = set()
    is_on_its_way = False

    def see(place: str, _watch: Watch, _frame: FrameType) -> None:
        if is_on_its_way:
            entered.add(place)

    def set_on_its_way(value: bool) -> None:
        nonlocal is_on_its_way
        is_on_its_way = value

    chat = load_chat(model, "qwen", "")

    async def run() -> None:
        async with LocalExecutor() as executor:
            await executor.run(Request(PROGRAM))
            engine = OneCallEngine(chat.tokenizer.encode, chat.end_of_turn_id, set_on_its_way)
            trace = await Agent(engine, chat).rollout(Problem("one", QUESTION, ANSWER), [PythonTool(executor)])
            assert [result.text for result in trace.results] == [ANSWER], trace

    with Watch(see):
        asyncio.run(run())
    return {"text_to_sandbox_and_back": {**_ways(entered), "entered": sorted(entered)}}


# What is printed.


def print_table(measured: dict[str, Any]) -> None:
    for name, value in measured.items():
        title = name.replace("_", " ")
        if name in ("files", "lines"):
            each = ", ".join(f"{folder} {number:,}" for folder, number in value.items())
            print(f"{title}: {sum(value.values()):,} ({each})")
        elif name == "repeated_classes":
            print(f"{title}: {len(value)} ({', '.join(value)})")
        elif isinstance(value, dict) and "files" in value:
            print(f"{title}: {value['functions']} functions in {value['files']} files")
            for place in value.get("chain", ()):
                print(f"    {place}")
        elif isinstance(value, dict):
            print(f"{title}: {', '.join(f'{key} {number}' for key, number in value.items())}")
        else:
            print(f"{title}: {value:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    measured = measure_sources()
    with TemporaryDirectory() as folder:
        measured |= measure_step(Path(folder))
        measured |= measure_call(Path(folder) / "run" / "final")
    if options.json:
        print(json.dumps(measured, indent=2))
    else:
        print_table(measured)


if __name__ == "__main__":
    main()
